"""How texts in Chinese, Japanese and Korean end with an answer that is no number with its words:
故选C, 【答案】ACD, 答案为:①③, 答案是 3 或 5, 정답: C."""

import re

from isojax.tasks.answers.other_languages import denies_in_cjk
from isojax.tasks.answers.spelling import CJK, MAX_ANSWER_LENGTH

_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
_LETTERS = r"[($*\s]*[A-J](?:[)$*\s]*(?:[,、和与與及]|\s)?[($*\s]*[A-J])*[)$*\s]*"
_CHOSEN = re.compile(
    rf"(?:[选選](?:择|擇|项|項|択)?|選ぶのは)\s*(?:答案|项|項)?\s*[:为為是]?\s*({_LETTERS})(?:选?项|選?項)?$"
)
_CORRECT = re.compile(rf"(?:故|所以|因此)?选?项\s*({_LETTERS})\s*(?:是)?正确的?$")
# 答案:①③, 正确的是 B, 정답은 3
_ANSWER = re.compile(
    r"""
    (?:答案|正确选项|正確選項|正确的(?:说法|结论|选项|命题|序号)?(?=[是为])|正解|答え|정답|답)\s*[】\]]?\s*
    (?:(?:应|應)(?:该|該)?|就|便)?\s*(?:是|为|為|选|選|は|은|는)?\s*:?\s*([^:]+?)(?:选项|選項|项)?$
    """,
    re.VERBOSE,
)
_JOINING_WORDS = re.compile("或者?|以?及|[和与與]|または|もしくは|또는")
_CJK_LETTER = re.compile(f"[{CJK}]")
_ENDING = re.compile(r"\s*(?:です|입니다|이다)?[\s.!]*$")


def answer_at_the_end(text: str) -> str | None:
    """The answer that the last sentence of a text in Chinese, Japanese or Korean states: "C" for
    故选C, "①③" for 答案为:①③. None where it states none, denies it, or has other words with it, and
    for texts in other languages."""
    sentence = _SENTENCE_ENDS.split(text.strip())[-1].strip(" *#>")
    if "?" in sentence or not _CJK_LETTER.search(sentence):
        return None
    sentence = _ENDING.sub("", sentence)  # verb endings, such as です, and the full stop

    # 故选C, 选项 C 正确, 答案为 C; the group is the answer.
    match = _CHOSEN.search(sentence) or _CORRECT.search(sentence) or _ANSWER.search(sentence)
    if match is None or denies_in_cjk(sentence[: match.start()]):
        return None

    answer = match[1].strip(" *")
    # 和 and the like may join the answers of a list.
    has_other_words = _CJK_LETTER.search(_JOINING_WORDS.sub("", answer)) is not None
    return None if has_other_words or len(answer) > MAX_ANSWER_LENGTH else answer
