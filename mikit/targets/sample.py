"""A short fixed text to try a target on: prose of several kinds, written for this."""

from mikit.targets.base import Target

TEXTS = (
    "The ferry left the harbour a little after nine, and by noon the island was only a grey line behind us. Nobody spoke much, since the wind took most of the words away.",
    "Prices of grain rose again in March. Traders blamed a dry winter in the south, while farmers said that the new tariff had done more harm than the weather.",
    "To make the soup, fry two onions slowly in butter, add the carrots and a litre of water, and let it simmer for forty minutes before you season it.",
    "In 1848 the town had three schools, a small hospital and a railway station. Forty years later its population had doubled, and most people worked in the mills.",
    "If a function is continuous on a closed interval, then it reaches its largest and its smallest value there. The proof uses nothing but the order of the numbers.",
    "She had promised to write every week, but after the second letter there was nothing. He kept both of them in a drawer, under the maps.",
    "The committee will meet on Tuesday to discuss the budget. Members who can't attend should send their questions to the secretary before Friday, she said.",
    "A bat finds its way in the dark by listening to echoes of its own calls. The shorter the delay, the nearer the wall, the branch or the insect.",
    "Our team lost the first match by two goals and won the second easily. The coach said that the players were tired but proud of what they had done.",
    "When the program starts, it reads a list of names from the file, sorts them, and prints those that occur more than once with their number.",
    "The old doctor walked from house to house with his black bag, even in deep snow, and was paid in eggs, firewood and sometimes in songs.",
    "According to the report, the bridge was closed because of cracks in two of its pillars. Repairs are expected to take six months and to cost four million.",
)


def sample_ids(target: Target, tokens: int = 32) -> list[list[int]]:
    """Content ids of the sample, each text cut to so many tokens: the target's own documents where it has a language of its own."""
    texts = TEXTS if target.own_documents is None else [text for _, text in target.own_documents[: len(TEXTS)]]
    return [ids for text in texts if len(ids := target.ids_of(text)[:tokens]) > 1]
