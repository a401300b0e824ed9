"""Recognizes text after an answer that takes it back: ", which is false", "Actually, no, that's
wrong.", "这是错的"."""

import re

# What such a sentence may begin with.
_INTERJECTIONS_IN_WORDS = (
    r"actually|no|nope|wait|oh|ah|hmm+|uh|um|sorry|oops|but|and|so|well|however|yet|though|again"
    r"|therefore|thus|hence|then|unfortunately|obviously"
    r"|clearly|hold\s+on|hang\s+on|on\s+second\s+thoughts?|of\s+course(?:\s+not)?|in\s+fact"
    r"|let\s+(?:me|us)\s+(?:re\w*|double[\s-]*check|check|think|see)(?:\s+(?:that|this|it|again))*"
    r"|I\s+(?:see|realize|think|see\s+now)(?:\s+that)?"
    r"|pero|mais|aber|ma|mas|nein|doch|non|но|нет"
)
_INTERJECTIONS_IN_CJK = r"等等|等一下|不(?=[\s,.!])|但是?|其实|实际上|哦|嗯|不过|然而"
_INTERJECTIONS = rf"(?:(?:(?:{_INTERJECTIONS_IN_WORDS})\b|{_INTERJECTIONS_IN_CJK})[\s,.!:;…—–-]*)*"

# "It is not possible to do better" says nothing of the answer.
_IMPOSSIBLE = r"impossible(?!\s+(?:to|for|that)\b)"
_POSSIBLE = r"possible(?!\s+(?:to|for|that)\b)"
_RIGHT = rf"(?:right|correct|true|it|so|valid|{_POSSIBLE}|the\s+(?:\w+\s+)?(?:answer|case|result))"
_WRONG = (
    rf"(?:(?:all|quite|clearly|obviously|simply|just|completely|totally|also)\s+)?(?:wrong"
    rf"|incorrect|false|untrue|mistaken|{_IMPOSSIBLE}"
    r"|absurd|nonsense|an?\s+(?:\w+\s+)?(?:mistake|error|contradiction)|in\s+error"
    r"|too\s+(?:small|large|big|low|high|much|many|few)"
    rf"|(?:not|never|n['’]t)\s+(?:be\s+|quite\s+)?{_RIGHT})\b"
)
_SUBJECT_NOUN = r"(?:answer|value|number|result|solution|total|calculation)"
_SUBJECT = rf"(?:which|that|this|it|(?:the|this|that|my)\s+(?:\w+\s+)?{_SUBJECT_NOUN})"
_VERB = rf"(?:\s+(?:{_SUBJECT_NOUN}|is|was|would\s+be|must\s+be|can|could|seems|looks)|['’]s)+"
_DOES_NOT = (
    r"(?:(?:does|do|can|did)\s*(?:not|n['’]t)|can['’]t)\s+(?:be\s+)?"
    r"(?:right|correct|true|work|hold|fit|match|satisfy|check\s+out|add\s+up|make\s+sense|it"
    r"|be(?=\s*[.!,;]|\s*$))\b"
)
_PREDICATES = (
    rf"{_VERB}\s*{_WRONG}",
    r"(?:\s+(?:is|was)\s+not|\s+(?:is|was)n['’]t|['’]s\s+not)(?=\s*(?:[.!,]|$))",
    rf"\s*(?:is|was|ca|could|does|do)n['’]t\s+(?:be\s+|look\s+|seem\s+)?(?:{_RIGHT}|work"
    rf"|make\s+sense)\b",
    rf"\s+{_DOES_NOT}",
    r"\s+(?:leads?\s+to\s+a\s+contradiction|contradicts?|violates?|fails?)\b",
)
_IS_WRONG = rf"{_SUBJECT}(?:{'|'.join(_PREDICATES)})"

# Sentences of their own that need no subject.
_ALONE = (
    r"wrong|incorrect|false|not|(?:just\s+)?kidding|not\s+(?:correct|right|true)|oops|nope|no"
    r"|my\s+mistake|my\s+bad",
    r"scratch\s+that|strike\s+that|never\s*mind"
    r"|(?:ignore|disregard|forget)\s+(?:that|this|it|the\s+above)",
    r"I(?:\s+was|\s+am|['’]m)\s+(?:wrong|mistaken)"
    r"|I\s+(?:take\s+(?:that|it|this)\s+back|retract\s+(?:that|it|this))",
    r"I(?:\s+have|['’]ve)?\s+(?:miscalculated|misread|miscounted|misunderstood"
    r"|messed\s+up)[^.!\n]{0,40}",
    r"I(?:\s+have|['’]ve)?\s+(?:must\s+have\s+)?ma[dk]e\s+an?\s+(?:\w+\s+)?(?:mistake|error)",
)
_OTHER_LANGUAGES = (
    r"(?:das|dies|es|die\s+antwort)\s+ist\s+(?:\w+\s+)?(?:falsch|nicht\s+(?:richtig|korrekt|wahr)"
    r"|ein\s+fehler|unmöglich)",
    r"(?:das|dies|es|die\s+antwort)\s+(?:stimmt\s+(?:aber\s+)?nicht"
    r"|kann\s+nicht\s+(?:sein|stimmen))",
    r"(?:c['’]est|ceci\s+est|cela\s+est|la\s+réponse\s+est)\s+(?:\w+ment\s+)?(?:faux|fausse"
    r"|incorrecte?|une?\s+erreur|impossible)",
    r"(?:ce|cela)\s+n['’]est\s+pas\s+(?:correct|juste|vrai|exact|possible|ça)|ça\s+ne\s+va\s+pas",
    r"(?:(?:eso|esto|la\s+respuesta)\s+)?es\s+(?:incorrect[oa]|fals[oa]|errón[eo]a?|imposible"
    r"|un\s+error)",
    r"(?:(?:eso|esto|la\s+respuesta)\s+)?(?:está\s+(?:mal|equivocad[oa])"
    r"|no\s+es\s+(?:correct[oa]|cierto|verdad|posible|así)|no\s+puede\s+ser)",
    r"(?:(?:isso|isto|a\s+resposta)\s+)?(?:está\s+(?:errad[oa]|incorret[oa])"
    r"|é\s+(?:fals[oa]|impossível|um\s+erro))",
    r"(?:(?:isso|isto|a\s+resposta)\s+)?não\s+(?:está|é)\s+(?:cert[oa]|corret[oa]|verdade"
    r"|possível)",
    r"(?:(?:questo|ciò|quello|la\s+risposta)\s+)?è\s+(?:sbagliat[oa]|fals[oa]|errat[oa]|impossibile"
    r"|un\s+errore)",
    r"(?:(?:questo|ciò|quello|la\s+risposta)\s+)?non\s+è\s+(?:corrett[oa]|giust[oa]|ver[oa]"
    r"|possibile)",
    r"(?:это|ответ)\s+(?:\w+\s+)?(?:неверно|неверный|неправильно|неправильный|ошибка|не\s*так"
    r"|невозможно|не\s+верно)",
    r"me\s+equivoqué|je\s+me\s+suis\s+trompée?|ich\s+habe\s+mich\s+(?:geirrt|verrechnet|vertan)"
    r"|mi\s+sono\s+sbagliat[oa]|eu\s+errei",
    r"я\s+(?:ошибся|ошиблась)|(?:dat|dit)\s+is\s+(?:fout|onjuist|niet\s+(?:juist|correct|goed))"
    r"|to\s+(?:jest\s+)?(?:błąd|błędne|nieprawda)|bu\s+yanlış",
    r"(?:falsch|faux|falso|incorrecto|errado|sbagliato|неверно|неправильно|(?:stimmt|geht)\s+nicht"
    r"|fout)(?=\s*[.!])",
)
# With or without a subject, and without spaces.
_CJK_SUBJECT = (
    r"(?:[这這那此该該]个?[是样樣]?|但|我们?|答案|结果|結果|以上|上[面述]|これは|それは|그것은"
    r"|이것은|이는)*"
    r"\s*(?:是|计算|計算|的|也|都|有)*"
)
_CJK_WRONG = (
    r"(?:错误的?|錯誤的?|错的?|錯的?|不(?:对|對|正确|正確|成立|可能|是正确的?|是答案)|有误|有誤"
    r"|有错|搞错|算错)(?=[\s.,!了啊呢吧的]|$)"
    r"|間違|違い|まちが|ちがい|誤り|正しくな|틀렸|틀린|잘못"
)
TAKEN_BACK = (
    rf"{_INTERJECTIONS}(?:{_IS_WRONG}|(?:{'|'.join(_ALONE)})\s*(?:[.!…]|$)"
    rf"|(?:{'|'.join(_OTHER_LANGUAGES)})(?!\w)"
    rf"|{_CJK_SUBJECT}(?:{_CJK_WRONG}))"
)

_UNSURE = (
    r"(?:I(?:['’]m|\s+am)\s+(?:\w+\s+)?)?(?:not\s+(?:\w+\s+)?(?:sure|certain)|unsure|uncertain)\b",
    r"I(?:['’]m|\s+am)\s+(?:\w+\s+)?guessing\b|I\s+(?:could|may|might)\s+be\s+(?:wrong|mistaken)\b",
    r"I\s+do(?:n['’]t|\s+not)\s+(?:really\s+)?know\b",
    r"(?:this|that|it)(?:\s+is|\s+was|['’]s)\s+(?:just\s+|only\s+)?(?:a|my)\s+(?:\w+\s+)?guess\b",
)
_BETWEEN = r"[\s*$\\)\]}_.!,;。…—–-]*"
_TAKES_BACK = re.compile(f"{_BETWEEN}{TAKEN_BACK}", re.IGNORECASE)
_LEAVES_OPEN = re.compile(f"{_BETWEEN}{_INTERJECTIONS}(?:{'|'.join(_UNSURE)})", re.IGNORECASE)


def is_taken_back(text: str, end: int) -> bool:
    """Whether the sentence that begins at `end`, behind an answer, says that it is wrong."""
    return _TAKES_BACK.match(text, end) is not None


def is_left_open(text: str, end: int) -> bool:
    """Whether the sentence that begins at `end`, behind an answer, says that it is a guess."""
    return _LEAVES_OPEN.match(text, end) is not None
