"""Words of other languages than English that deny a value, bound it, guess it or list it with another.

Written languages without spaces come first: their words are found anywhere, those of the others between spaces.
"""

import re

from isojax.tasks.answers.spelling import CJK

# Chinese, Japanese and Korean: not, or, at least, about, between ...
_CJK_DENIED = re.compile(
    "不(?!同)|非|没|沒|无|無|或|错|錯|误|誤|如果|若|可能|也许|也許|大概|大约|大約|[约約](?![翰瑟])|左右|上下|接近|几乎|至少|至多"
    "|最[多少]|以上|以下|以内|超(?!市)|[大小多少高低]于|[大小多少]於|之间|之間|例如|比如|ない|ません|じゃ|違|または|もしくは|およそ|ほど"
    "|くらい|ぐらい|未満|かも|たぶん|아[니닙닌]|않|없|또는|이상|이하|미만|초과|정도|대략|아마|약 "
)
_CJK_BEFORE = re.compile(r"(?:[第负負除乘加减減近]|(?<!所)以|マイナス)\s*[$]?$")
_HAS_CJK = re.compile(f"[{CJK}]")
_CJK_LISTED = re.compile(r"[0-9$]\s*(?:[和与與及到至と]|から|과|와)\s*$")
_CJK_BEHIND = re.compile(
    r"\s*[个個]?(?:[万亿萬億百十多余餘几幾半又点點双雙对打倍割的の의만억천백반배번]|千(?![克米瓦焦卡])|分之|分の|次方|平方(?![米厘公千分毫])"
    r"|[加减減乘除])|\s*(?:[和与與及到至と]|から|과|와)\s*[-$]*[0-9]"
)

_DENIALS = (
    r"no\s+(?:es|son|est[áa]n?|puede|ser[áa]|fue|era|vale|hay|da|tiene)|nunca|jam[áa]s|tampoco",  # Spanish
    r"n[ãa]o|nem",  # Portuguese
    r"n['’](?:est|était|a|ont|y)|ne\s+\w+\s+(?:pas|jamais|point)|n['’]est\s+pas|pas|jamais|aucune?",  # French
    r"nicht|kein\w*|niemals|nie|weder|falsch",  # German
    r"non\s+(?:è|e['’]|é|sono|può|vale|fa|sarà|ha)|nessun\w*|neanche",  # Italian
    r"niet|geen|nooit|inte|ikke|ikkje|aldrig|ei\s+ole|eivät|nem|nu\s+(?:este|e)",  # Dutch, Nordic, Hungarian, Romanian
    r"nie|nigdy|není|nikdy|nije",  # Polish, Czech, Serbian
    r"не|нет|никогда|нельзя|ни|неверно|ложно|ні|δεν|όχι",  # Russian, Ukrainian, Greek
    r"değil(?:dir)?|không|bukan(?:lah)?|tidak|tak|hindi",  # Turkish, Vietnamese, Indonesian, Tagalog
    r"ليس(?:ت)?|لا|لن|لم|غير|नहीं|לא|אינו|אינה|نیست",  # Arabic, Hindi, Hebrew, Persian
)
_BOUNDS = (
    r"al\s+menos|por\s+lo\s+menos|como\s+(?:m[íi]nimo|m[áa]ximo)|a\s+lo\s+(?:sumo|m[áa]s)|(?:m[áa]s|menos)\s+(?:de|que)"
    r"|(?:mayor|menor|superior|inferior)(?:es)?\s+(?:que|o|a|à|ou)|entre|hasta",
    r"pelo\s+menos|no\s+(?:m[íi]nimo|m[áa]ximo)|mais\s+(?:de|do|que)|(?:maior|menor)\s+(?:que|do|ou)|até",
    r"au\s+(?:moins|plus|maximum|minimum)|plus\s+(?:de|que|grand|petit)|moins\s+(?:de|que)|supérieure?s?|inférieure?s?"
    r"|jusqu['’]à",
    r"mindestens|höchstens|wenigstens|zumindest|(?:mehr|weniger|größer|kleiner)\s+(?:als|oder)|zwischen|über|unter"
    r"|bis\s+zu|ist\s+(?:maximal|minimal)",
    r"almeno|al\s+(?:massimo|minimo|più)|(?:più|meno)\s+di|(?:maggiore|minore)|(?:tra|fra)(?=\s+\S*[0-9])|fino\s+a",
    r"minstens|ten\s+minste|hoogstens|ten\s+hoogste|(?:meer|minder|groter|kleiner)\s+dan|tussen"
    r"|minst|högst|høyst|mer\s+än|mindre\s+än|mellan|mellom",
    r"минимум|максимум|по\s+крайней\s+мере|больше|меньше|более|менее|между|до|свыше|щонайменше|більше|менше",
    r"co\s+najmniej|co\s+najwyżej|przynajmniej|więcej|mniej|między|ponad|alespoň|nejméně|nejvýše",
    r"en\s+(?:az|fazla|çok)|büyük\w*|küçük\w*|arasında\w*|ít\s+nhất|nhiều\s+nhất|(?:lớn|nhỏ|nhiều|ít)\s+hơn|giữa"
    r"|setidaknya|sekurang-kurangnya|paling|(?:lebih|kurang)\s+dari|antara",
    r"على\s+الأقل|على\s+الأكثر|أكبر|أصغر|أقل|أكثر|بين|कम\s+से\s+कम|अधिक|ज़्यादा|ज्यादा|बीच|לפחות|לכל\s+היותר",
)
_GUESSES = (
    r"aproximadamente|alrededor\s+de|cerca\s+de|unos|unas|quiz[áa]s?|tal\s+vez|casi|talvez|quase",
    r"environ|à\s+peu\s+près|peut-être|presque|approximativement",
    r"ungefähr|etwa|zirka|rund|vielleicht|vermutlich|möglicherweise|knapp|ca\.?|forse|ongeveer|misschien|ungefär|kanskje",
    r"может|возможно|примерно|около|приблизительно|почти|наверное|około|może|około|prawdopodobnie|asi|možná",
    r"yaklaşık|belki|khoảng|có\s+lẽ|có\s+thể|sekitar|mungkin|حوالي|ربما|تقريبا|लगभग|शायद|בערך|אולי",
)
_NOT_THE_VALUE = re.compile(rf"(?<!\w)(?:{'|'.join((*_DENIALS, *_BOUNDS))})(?!\w)", re.IGNORECASE)
_GUESSED = re.compile(rf"(?<!\w)(?:{'|'.join(_GUESSES)})(?!\w)", re.IGNORECASE)

# Thousands, millions, dozens and halves.
SCALES = (
    r"lakhs?|crores?|mil|mill[oó]n(?:es)?|milh(?:ão|ões|ao|oes)|milion[ei]?|millionen|milliarden?|milliards?|mille|mila"
    r"|tausend|hundert|dutzend|docenas?|douzaines?|тыс\w*|миллион\w*|миллиард\w*|milyon|triệu|nghìn|juta|ribu"
    r"|y\s+medi[oa]|et\s+demie?|einhalb|e\s+mezz[oa]|e\s+mei[oa]|с\s+половиной"
)

# "and" and "or", which join two values to a list of them.
AND_OR = (
    "y|o|u|e|et|ou|und|oder|en|och|eller|og|ja|tai|i|lub|albo|oraz|a|nebo|и|или|та|або|ve|veya|ya\\s+da|và|hoặc"
    "|dan|atau|و|أو|और|या"
)


def leaves_value_open(sentence: str, start: int, end: int) -> bool:
    """Whether a sentence in another language than English states the value from `start` to `end` not, or not alone."""
    if _HAS_CJK.search(sentence):
        clause = re.split(r"[,;:](?=\s)", sentence[:start])[-1]
        if _CJK_DENIED.search(clause + sentence[start:]) or _CJK_BEFORE.search(clause):
            return True
        if _CJK_BEHIND.match(sentence, end) or _CJK_LISTED.search(sentence[:start]):
            return True
    if _NOT_THE_VALUE.search(sentence):
        return True
    is_decimal = "." in sentence[start:end]  # which may be rounded because that was asked for
    return not is_decimal and _GUESSED.search(sentence) is not None
