"""Words of other languages than English that deny a value, suppose it, bound it, guess it or list
it with another.

Written languages without spaces come first: their words are found anywhere, those of the others
between spaces.
"""

import re

from isojax.tasks.answers.spelling import CJK

# Chinese, Japanese and Korean: not, or, at least, about, between ...
_CJK_DENIED = re.compile(
    r"""
      不(?!同)|非|没|沒|无|無|或|错|錯|误|誤|如果|若|可能|也许|也許|大概|大约|大約
    | [约約](?![翰瑟])|左右|上下|接近|几乎|至少|至多
    | 最[多少]|以上|以下|以内|超(?!市)|[大小多少高低]于|[大小多少]於|之间|之間|例如|比如|ない
    | ません|じゃ|違|または|もしくは|およそ|ほど
    | くらい|ぐらい|未満|かも|たぶん|おそらく|恐らく|多分
    | 恐怕|或许|或許|猜|似乎|好像|아[니닙닌]|않|없|또는|이상|이하|미만|초과|정도|대략|아마
    | 것\s*같|지도\s*모|약[ ]
    """,
    re.VERBOSE,
)
# What is supposed: 设 x = 42, 令总数为 42, 假设, もし, 만약
_CJK_SUPPOSED = re.compile(
    r"""
      假[设設如定使]|反[设設]
    | ^\s*(?:\S{0,6}[解先再现妨们可]\s*)?[设設令](?!备|備|计|計|置|立|有|施|营|營|人)
      [^,;:.…]{0,12}?(?:=|[为為是])
    | もし|仮に|と仮定|만약|만일|가정|라고\s*하자|라\s*하자
    """,
    re.VERBOSE,
)
_CJK_CONDITION = re.compile(f"如果|若|要是|{_CJK_SUPPOSED.pattern}", re.VERBOSE)
_CJK_CLAUSE_BREAK = re.compile(r"[,;:](?=\s)|(?<![0-9])[,;:.](?![0-9])|[0-9][,;:.](?=[^0-9\s])|…+")
# 42とする, 42이라면
_CJK_SUPPOSED_BEHIND = re.compile(
    r"""
    [^,;.]{0,8}
    (?:と仮定|とする|とおく|とすると|ならば|라고\s*(?:하자|하면|가정)|라\s*하자|이라면|이면)
    """,
    re.VERBOSE,
)
_CJK_TO_BE_SHOWN = re.compile(
    r"(?:求证|求證|欲证|要证|需证|(?:要|想|试|来|去)(?:证明|證明|验证|驗證))\s*:?[^,;.]*$"
)
# Places in a text: 定理 42, 第 42 题 (which is a number behind 第), 図 42
_CJK_PLACE = re.compile(
    r"""
    (?:
          定理|引理|推论|推論|命题|命題|公理|性质|性質|定义|定義|公式|方程|等式|步骤|步驟|问题
        | 問題|(?<![做解答对主])[题題]|(?<!比)例[题題]?
        | (?<![地画拼])[图圖図]|(?<![手代列])表|(?<![方形模])式|練習|補題|問|정리|문제|예제|그림
        | 단계
    )\s*[(]?\s*$
    """,
    re.VERBOSE,
)
_CJK_BEFORE = re.compile(r"(?:[第负負除乘加减減近]|(?<!所)以|マイナス)\s*[$]?$")
_HAS_CJK = re.compile(f"[{CJK}]")
_CJK_LISTED = re.compile(r"[0-9$]\s*(?:[和与與及到至と]|から|과|와)\s*$")
# What makes another number of the value before it: 42万, 42分之1, 42和43
_CJK_BEHIND = re.compile(
    r"""
      \s*[个個]?
      (?:
            [万亿萬億百十多余餘几幾半又点點双雙对打倍割的の의만억천백반배번]|千(?![克米瓦焦卡])
          | 分之|分の|次方|平方(?![米厘公千分毫])
          | [加减減乘除]
      )
    | \s*(?:[和与與及到至と]|から|과|와)\s*[-$]*[0-9]
    """,
    re.VERBOSE,
)

_DENIALS = (
    # Spanish
    r"no\s+(?:es|son|est[áa]n?|puede|ser[áa]|fue|era|vale|hay|da|tiene)|nunca|jam[áa]s|tampoco",
    r"n[ãa]o|nem",  # Portuguese
    # French
    r"n['’](?:est|était|a|ont|y)|ne\s+\w+\s+(?:pas|jamais|point)|n['’]est\s+pas|pas|jamais|aucune?",
    r"nicht|kein\w*|niemals|nie|weder|falsch",  # German
    r"non\s+(?:è|e['’]|é|sono|può|vale|fa|sarà|ha)|nessun\w*|neanche",  # Italian
    # Dutch, Nordic, Hungarian, Romanian
    r"niet|geen|nooit|inte|ikke|ikkje|aldrig|ei\s+ole|eivät|nem|nu\s+(?:este|e)",
    r"nie|nigdy|není|nikdy|nije",  # Polish, Czech, Serbian
    r"не|нет|никогда|нельзя|ни|неверно|ложно|ні|δεν|όχι",  # Russian, Ukrainian, Greek
    # Turkish, Vietnamese, Indonesian, Tagalog
    r"değil(?:dir)?|không|bukan(?:lah)?|tidak|tak|hindi",
    r"ليس(?:ت)?|لا|لن|لم|غير|नहीं|לא|אינו|אינה|نیست",  # Arabic, Hindi, Hebrew, Persian
)
_BOUNDS = (
    r"al\s+menos|por\s+lo\s+menos|como\s+(?:m[íi]nimo|m[áa]ximo)|a\s+lo\s+(?:sumo|m[áa]s)"
    r"|(?:m[áa]s|menos)\s+(?:de|que)"
    r"|(?:mayor|menor|superior|inferior)(?:es)?\s+(?:que|o|a|à|ou)|entre|hasta",
    r"pelo\s+menos|no\s+(?:m[íi]nimo|m[áa]ximo)|mais\s+(?:de|do|que)"
    r"|(?:maior|menor)\s+(?:que|do|ou)|até",
    r"au\s+(?:moins|plus|maximum|minimum)|plus\s+(?:de|que|grand|petit)|moins\s+(?:de|que)"
    r"|supérieure?s?|inférieure?s?"
    r"|jusqu['’]à",
    r"mindestens|höchstens|wenigstens|zumindest|(?:mehr|weniger|größer|kleiner)\s+(?:als|oder)"
    r"|zwischen|über|unter"
    r"|bis\s+zu|ist\s+(?:maximal|minimal)",
    r"almeno|al\s+(?:massimo|minimo|più)|(?:più|meno)\s+di|(?:maggiore|minore)"
    r"|(?:tra|fra)(?=\s+\S*[0-9])|fino\s+a",
    r"minstens|ten\s+minste|hoogstens|ten\s+hoogste|(?:meer|minder|groter|kleiner)\s+dan|tussen"
    r"|minst|högst|høyst|mer\s+än|mindre\s+än|mellan|mellom",
    r"минимум|максимум|по\s+крайней\s+мере|больше|меньше|более|менее|между|до|свыше|щонайменше"
    r"|більше|менше",
    r"co\s+najmniej|co\s+najwyżej|przynajmniej|więcej|mniej|między|ponad|alespoň|nejméně|nejvýše",
    r"en\s+(?:az|fazla|çok)|büyük\w*|küçük\w*|arasında\w*|ít\s+nhất|nhiều\s+nhất"
    r"|(?:lớn|nhỏ|nhiều|ít)\s+hơn|giữa"
    r"|setidaknya|sekurang-kurangnya|paling|(?:lebih|kurang)\s+dari|antara",
    r"على\s+الأقل|على\s+الأكثر|أكبر|أصغر|أقل|أكثر|بين|कम\s+से\s+कम|अधिक|ज़्यादा|ज्यादा|बीच|לפחות"
    r"|לכל\s+היותר",
)
_GUESSES = (
    r"aproximadamente|alrededor\s+de|cerca\s+de|unos|unas|quiz[áa]s?|tal\s+vez|casi|talvez|quase"
    r"|probablemente|acaso"
    r"|posiblemente|seguramente|provavelmente|possivelmente|supongo|digamos|es\s+probable"
    r"|é\s+provável",
    r"environ|à\s+peu\s+près|peut-être|presque|approximativement|probablement|vraisemblablement"
    r"|sans\s+doute|disons|il\s+est\s+probable",
    r"ungefähr|etwa|zirka|rund|vielleicht|vermutlich|möglicherweise|knapp|ca\.?|forse|ongeveer"
    r"|misschien|ungefär|kanskje"
    r"|wahrscheinlich|mutmaßlich|wohl|sagen\s+wir|ich\s+(?:vermute|rate|schätze)|probabilmente"
    r"|mettiamo|diciamo|magari|waarschijnlijk|vermoedelijk|sannolikt|troligen|sandsynligvis",
    r"может|возможно|примерно|около|приблизительно|почти|наверное|наверно|вероятно|видимо"
    r"|скорее\s+всего|około|może"
    r"|prawdopodobnie|chyba|asi|možná|pravděpodobně|nejspíš|probabil",
    r"yaklaşık|belki|muhtemelen|galiba|khoảng|kemungkinan|barangkali|có\s+lẽ"
    r"|có\s+thể|sekitar|mungkin|حوالي|ربما|تقريبا|लगभग|शायद|בערך|אולי",
)
# In the part of the sentence before the value.
_SUPPOSITIONS = (
    r"sup[oó][nr]\w*|supuest\w*|asum\w+|imagin(?:emos|ad)|pongamos"
    # Spanish
    r"|sea[n]?\s+[$\\(]*\w+\s*=|si\s+(?:[$\\(]*[a-z]\s*=|fuera|la|el|es|son|hay|hubiera|tenemos)",
    r"suponh\w*|supõe|admita\w*"
    # Portuguese
    r"|seja[m]?\s+[$\\(]*\w+\s*=|se\s+(?:[$\\(]*[a-z]\s*=|fosse|for|o|a\s+resposta|houvesse|são)",
    r"suppos(?:ons|ez|ant|é)|admettons|imaginons"
    r"|soi(?:t|ent)\s+[$\\(]*\w+\s*=|s['’]il|si\s+(?:[cl]['’]\w+|le|on|elle|nous|x)",  # French
    r"angenommen|annahme|(?:nehme|nimm|nehmen)\b.*\ban|gesetzt"
    r"|stell\w*\s+(?:wir\s+)?(?:uns|dir|euch)\s+vor"
    # German
    r"|sei(?:en)?\s+[$\\(]*\w+\s*=|wenn|falls\s+(?:[$\\(]*[a-z]\s*=|es|die|der|das|man|wir)|wäre",
    # Italian
    r"supponi\w*|ammettiamo|poniamo|sia(?:no)?\s+[$\\(]*\w+\s*="
    r"|se\s+(?:il|fosse|la\s+risposta|sono)",
    r"stel|veronderstel\w*|neem\s+aan|antag|antages|låt|anta|hvis|ponamos",  # Dutch, Nordic
    # Russian
    r"пусть|предполож(?:им|ите|ить|ение)|допустим|допустить|допустите|положим|если|нехай|припустимо"
    r"|якщо",
    # Polish, Czech, Romanian
    r"załóżmy|niech|jeśli|jeżeli|předpokládejme|nechť|pokud|jestliže|dacă",
    # Turkish, Vietnamese, Indonesian
    r"varsayalım|diyelim|eğer|giả\s+sử|nếu|misalkan|andaikan|jika",
    r"لنفرض|نفرض|إذا|لو|मान|यदि|अगर|נניח|אם",  # Arabic, Hindi, Hebrew
)
_SUPPOSED = re.compile(rf"(?<!\w)(?:{'|'.join(_SUPPOSITIONS)})(?!\w)", re.IGNORECASE)
_COMMA_OF_A_SUPPOSITION = re.compile(rf"(?<!\w)({'|'.join(_SUPPOSITIONS)})\s*[,:]", re.IGNORECASE)
# Where the part of a sentence begins that a value belongs to, as in suppositions.py.
_CLAUSE_BREAK = re.compile(
    r"""
      [,;:.](?=\s)
    | (?<!\w)
      (?:
            entonces|então|alors|donc|dann|also|allora|quindi|dus|då|то|тогда|wtedy|pak|thì|maka
          | इसलिए
      )(?!\w)
    """,
    re.VERBOSE,
)
_NOT_THE_VALUE = re.compile(rf"(?<!\w)(?:{'|'.join((*_DENIALS, *_BOUNDS))})(?!\w)", re.IGNORECASE)
_GUESSED = re.compile(rf"(?<!\w)(?:{'|'.join(_GUESSES)})(?!\w)", re.IGNORECASE)

# Thousands, millions, dozens and halves.
SCALES = (
    r"lakhs?|crores?|mil|mill[oó]n(?:es)?|milh(?:ão|ões|ao|oes)|milion[ei]?|millionen|milliarden?"
    r"|milliards?|mille|mila"
    r"|tausend|hundert|dutzend|docenas?|douzaines?|тыс\w*|миллион\w*|миллиард\w*|milyon|triệu|nghìn"
    r"|juta|ribu"
    r"|y\s+medi[oa]|et\s+demie?|einhalb|e\s+mezz[oa]|e\s+mei[oa]|с\s+половиной"
)

# "and" and "or", which join two values to a list of them.
AND_OR = (
    "y|o|u|e|et|ou|und|oder|en|och|eller|og|ja|tai|i|lub|albo|oraz|a|nebo|и|или|та|або|ve|veya"
    "|ya\\s+da|và|hoặc"
    "|dan|atau|و|أو|और|या"
)


def _cjk_clause(before: str) -> str:
    return _CJK_CLAUSE_BREAK.split(before)[-1]


def supposes_in_other_languages(before: str) -> bool:
    """Whether the words before a value, in its sentence, suppose it: Sei x = 42; Angenommen, es
    sind 42."""
    if _HAS_CJK.search(before) and _CJK_CONDITION.search(_cjk_clause(before)):
        return True
    clause = _CLAUSE_BREAK.split(_COMMA_OF_A_SUPPOSITION.sub(r"\1 ", before))[-1]
    return _SUPPOSED.search(clause) is not None


def denies_in_cjk(clause: str) -> bool:
    """Whether words of Chinese, Japanese or Korean deny, suppose or guess what follows them."""
    patterns = (_CJK_DENIED, _CJK_SUPPOSED, _CJK_TO_BE_SHOWN)
    return any(pattern.search(clause) is not None for pattern in patterns)


def leaves_value_open(sentence: str, start: int, end: int) -> bool:
    """Whether a sentence in another language than English does not state the value at
    sentence[start:end] as a fact: it denies, supposes, bounds or guesses it, or lists it with
    another value. The names say where a pattern is looked for: _BEFORE and _SUPPOSED in the clause
    before the value, _BEHIND right after it, _DENIED on both sides of it."""
    before = sentence[:start]
    if _HAS_CJK.search(sentence):
        clause = _cjk_clause(before)  # the last clause before the value
        if _CJK_DENIED.search(clause + sentence[start:]) or _CJK_BEFORE.search(clause):
            return True
        if _CJK_SUPPOSED.search(clause) or _CJK_SUPPOSED_BEHIND.match(sentence, end):
            return True
        if _CJK_TO_BE_SHOWN.search(before) or _CJK_PLACE.search(clause):
            return True
        if _CJK_BEHIND.match(sentence, end) or _CJK_LISTED.search(before):
            return True

    # Denials and bounds of the other languages, anywhere in the sentence.
    if _NOT_THE_VALUE.search(sentence) or supposes_in_other_languages(before):
        return True
    # "About 33.3" is no guess: a decimal may be rounded because that was asked for.
    is_decimal = "." in sentence[start:end]
    return not is_decimal and _GUESSED.search(sentence) is not None
