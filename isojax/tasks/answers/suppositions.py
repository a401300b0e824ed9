"""Recognizes sentences that name a value without stating it as the answer: they suppose it, try it,
set out to show it, guess it, or point to a numbered place in a text.

"Let x = 42", "If it were 42", "We want to show that it is 42", "probably 42" and "by Theorem 42"
state nothing. What follows from a supposition does: "If x = 6, then she has 42".
"""

import re

# Where the part of a sentence begins that a value belongs to.
_CLAUSE_BREAK = re.compile(
    r"""
      [,;:](?=\s)|=>|⇒|→|\\(?:[Ll]ong)?[Rr]ightarrow|\\implies
    | \b
      (?:
            then|so|therefore|hence|thus|gives?|yields?|implies|means|makes?|leaves?
          | (?:we|you|she|he|they|it|I)\s+
            (?:get|gets|obtain|find|see|will|would|has|have|had|can|needs?|makes?|pays?|earns?)
      )\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What follows "let us" where a value is tried
_TRIAL = (
    r"(?:try|check|test|guess|suppose|assume|say|see|verify|imagine|pretend|consider|take|set|put"
    r"|denote|call|define|start|begin|pick|choose|plug|substitute|use)"
)
# "suppose", "let x = ", "let us now try", "let the sum be"
_SUPPOSED = re.compile(
    rf"""
      \b
      (?:
            suppos(?:e|ing|ition)|assum(?:e|es|ed|ing|ption)|hypothes\w+|imagine|pretend
          | what\s+if|conjecture\w*|were\s+to|as\s+though
          | in\s+case|provided\s+that
          | let(?:['’]?s|\s+us|\s+me)?\s+(?:\w+ly\s+|now\s+|first\s+|just\s+)?{_TRIAL}
          | let\s+[$\\(]*[A-Za-z](?:_\{{?\w+\}}?)?[$\\)]*\s*
            (?:be|=|equal|denote|represent|stand)
          | let\s+(?:the|his|her|their|its|our|this|that|there|it|an?|each)\b[^,;]*?\b
            (?:be|equal)
      )\b
    | \blet\s*[$\\(]*$|\blet\s+[$\\(]*[A-Za-z]\s*=\s*[$\\(]*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "Suppose, for a moment, that", "Assumption: "
_COMMA_OF_A_SUPPOSITION = re.compile(
    r"""
      \b(suppose|assume|imagine|hypothetically)(?:\s*,[^,]{0,30},|\s*[,:])
    | \b(supposition|assumption|conjecture|hypothesis)\s*:
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The beginning of a clause that tries a value: "Now, try 42", "put x = 42"
_TRIED = re.compile(
    r"""
    \W*(?:(?:now|next|first|so|then|again|we)\W+)*
    (?:
          (?:try|trying|testing|checking|claim|consider|guess|suppose|denote|call)\b
        | say\s+(?:it|the|that|there|[$\\(]*[A-Za-z]\s*=)
        | given\s+(?:that\s+)?[$\\(]*(?:$|[A-Za-z]\s*=)
        | (?:take|put|set|choose|pick|plug(?:ging)?(?:\s+in)?|substitut(?:e|ing))\s*
          (?:$|\s[$\\(]*(?:$|[A-Za-z]\s*=))
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A question, with or without its question mark; a condition without "if"
_ASKED = re.compile(
    r"""
    \W*(?:is|are|was|were|could|can|might|may|would|will|should|does|do|did|has|had)\s+
    (?:it|the|this|that|there|we|they|he|she|his|her|their|x|n|my|our|our\s+\w+)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_IF = re.compile(r"\bif\b([^,;]*)$", re.IGNORECASE)
_SHOW = r"(?:show|prove|establish|demonstrate|justify|derive|argue)"
# "We want to show that it is 42", "Now verify that"
_TO_BE_SHOWN = re.compile(
    rf"""
      \bto\s+
      (?:
            {_SHOW}\s+(?:that|whether|if|the|it|this|[$\\(]*[A-Za-z]\s*=)
          | (?:verify|check|confirm|see|test|determine|decide|find\s+out)\s+
            (?:that|whether|if|[$\\(]*[A-Za-z]\s*=)
      )
    | ^\W*(?:(?:now|next|first|so|then|let\s+us|let['’]s)\W+)*
      (?:(?:we|you|one|I)\s+(?:(?:must|should|shall|will|can|could|may)\s+)?(?:now\s+)?)?
      (?:{_SHOW}|verify|check|confirm)\s+(?:that|whether|if)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "To prove: the sum is 42"
_TO_BE_SHOWN_BEHIND_COLON = re.compile(
    rf"""
    \b(?:to\s+(?:be\s+)?(?:{_SHOW}|shown|proved|proven|verify|check)|claim|conjecture)\s*:
    [^,;.]*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CONDITION = re.compile(r"\b(?:if|unless|in\s+case|provided|without|but\s+for)\b", re.IGNORECASE)
# "It would be 42 if there were 6 bags"
_COUNTERFACTUAL = re.compile(
    r"""
      \bwould\s+(?:be|have\s+been)\b.*?\b(?:if|unless)\b.*?\b(?:were|was|had|did|could)\b
    | \b(?:if|unless)\b.*\bwere\b[^,;]*$
    """,
    re.IGNORECASE | re.VERBOSE,
)

GUESSING_ADVERBS = (
    "probably|presumably|supposedly|allegedly|conceivably|plausibly|arguably|hopefully|tentatively"
    "|potentially|ostensibly|seemingly|apparently"
)
# "The most likely sum is 7", "36 equally likely outcomes" guess nothing.
_LIKELY = (
    r"(?<!\bthe most )(?<!equally )(?<!as )(?<!more )(?<!less )(?<!how )likely"
    r"(?=\W*(?:[-+$\\0-9.]|$|(?:that|to\s+be|be|is|equals?|it|the|about|around|just|exactly)\b))"
)
_I_GUESS = (
    r"(?:I|we)(?:(?:['’]m|['’]re|\s+am|\s+are)\s+(?:\w+\s+)?guessing|"
    r"(?:['’]d|['’]ll|\s+would|\s+will|\s+do|\s+can\s+only)?\s+(?:\w+ly\s+)?"
    r"(?:suspect|bet|conjecture|presume|reckon|suppose|imagine|wager|speculate|guess))"
)
GUESSED = re.compile(rf"\b(?:{GUESSING_ADVERBS}|{_LIKELY}|{_I_GUESS})(?!\w)", re.IGNORECASE)
# Behind a value: "42, most likely"
GUESSED_BEHIND = (
    rf"(?:(?:most|very|quite|highly|more\s+than)\s+)?(?:{GUESSING_ADVERBS}|likely)"
    rf"|maybe|perhaps|possibly|{_I_GUESS}"
    r"|at\s+a\s+guess|in\s+all\s+(?:likelihood|probability)"
)
# "So, perhaps, it is 42"
_BEGINS_WITH_A_GUESS = re.compile(
    rf"""
    \W*(?:(?:so|then|thus|hence|therefore|but|and)\W+)*(?:{GUESSED_BEHIND})
    (?:\s*,|\s+(?:the|it|that|this)\b)
    """,
    re.IGNORECASE | re.VERBOSE,
)

# What has a number in a text; other languages behind. An abbreviation ends with a full stop.
_PLACES_IN_FULL = (
    r"theorem|thm|lemma|corollary|proposition|definition|axiom|postulate|conjecture|hypothesis"
    r"|assumption|remark|observation|identity|inequality|formula|statement|claim|section|subsection"
    r"|appendix|footnote|paragraph|diagram|graph|chart|hint|clue|condition|constraint|criterion"
    r"|reference|eqn|article|verse|exhibit"
    r"|satz|hilfssatz|aufgabe|frage|schritt|übung|abbildung|gleichung|beispiel|kapitel|seite"
    r"|abschnitt|folgerung"
    r"|théorème|lemme|corollaire|exercice|étape|équation|exemple|chapitre|propriété|formule"
    r"|teorema|lema|corolario|corollario|corolário|proposici[óo]n|proposizione|proposição|ejercicio"
    r"|esercizio|exercício|paso|passo|pregunta|pergunta|domanda|problema|ecuaci[óo]n|equazione"
    r"|equação|ejemplo|esempio|exemplo|página|pagina"
    r"|cap[íi]tulo|capitolo|figura|tabla|tabella|tabela|stelling|opgave|vraag|stap|voorbeeld"
    r"|теорем[аыуе]|лемм[аыуе]|следстви[еяю]|утверждени[еяю]|задач[аеиу]"
    r"|шаг[аеу]?|пример[ае]?|уравнени[еяю]|глав[аеыу]|страниц[аеыу]"
    r"|twierdzeni\w*|zadani\w*|krok|równani\w*|przykład|teoremi?|soru|adım"
)
_PLACES_IN_SHORT = (
    r"thm|lem|cor|prop|defn?|sec|eqn?|eqs|fig|ex|ref|prob|ch|chap|pp?|vol|art|abb|kap|рис|гл|стр"
)
# Without their capital letters these are other things: "the rule of 3".
_PLACES_IN_CAPITALS = (
    "(?-i:Rule|Law|Property|Principle|Fact|Method|Approach|Attempt|Lecture|Lesson|Homework"
    "|Assignment|Item|Test|Quiz)"
)
PLACES = rf"{_PLACES_IN_FULL}|{_PLACES_IN_CAPITALS}|(?:{_PLACES_IN_SHORT})\."


def is_supposed(before: str) -> bool:
    """Whether the words before a value, in its sentence, only suppose or guess it, ask for it, or
    set out to show it: "Let x =", "If it were", "We want to show that it is". before: the sentence
    up to the value. A condition of another clause does not count: "If x = 6, then she has"."""
    # "Is it", "so, perhaps, it is", "to prove: the sum is".
    if _ASKED.match(before) or _BEGINS_WITH_A_GUESS.match(before):
        return True
    if _TO_BE_SHOWN_BEHIND_COLON.search(before):
        return True

    # "Suppose, for a moment, that": its comma begins no new clause.
    before = _COMMA_OF_A_SUPPOSITION.sub(r"\1\2 ", before)
    # Then look at the last clause alone: "try x =", "let x =", "we want to show that".
    if _TRIED.match(re.split(r"[,;:]\s", before)[-1]):
        return True
    clause = _CLAUSE_BREAK.split(before)[-1]
    if _SUPPOSED.search(clause) or _TO_BE_SHOWN.search(clause):
        return True

    # "If there are 6 bags of 7 she has 42" writes no comma between the condition and what follows.
    # So a clause with "if" supposes the value only if no number stands behind the "if" already.
    condition = _IF.search(clause)
    return condition is not None and re.search("[0-9]", condition[1]) is None


def is_counterfactual(sentence: str) -> bool:
    """Whether a sentence says what would be the answer if something else were so."""
    return _COUNTERFACTUAL.search(sentence) is not None


def depends_on_a_condition(sentence: str) -> bool:
    """Whether a sentence with "the answer would be" has the condition too."""
    return _CONDITION.search(sentence) is not None
