"""How large an input may be (docs/faults.md).

The reader of what is larger refuses it and names the limit.
"""

MAX_LINE_BYTES = 8 * 2**20  # of a line of a text file
MAX_TEXT_BYTES = 2**29  # of a text file, unpacked
MAX_LINES = 10**6  # of a text file
# Of Parquet files, unpacked: published ones repeat their problems.
MAX_ROWS = 4 * 10**6
MAX_ROW_BYTES = 2**32
MAX_DOCUMENT_BYTES = 32 * 2**20  # of a file that holds one JSON value
MAX_DEPTH = 64  # lists and objects within each other
MAX_OBJECTS = 2 * 10**6  # lists and objects of a JSON value
MAX_COLUMNS = 4096  # of a table
MAX_NAME = 200  # characters of a name that others are compared with
MAX_YAML_BYTES = 2**17  # of a config
MAX_REFERENCES = 16  # ${...} of a config: each may stand for a text that has others
MAX_PROMPT_CHARACTERS = 2**20  # of a problem in its template, or a conversation in that of its chat
MAX_COUNT = 10**15  # of a whole number; float64 holds all of them exactly
MAX_NUMBER = 1e30  # of the size of any other number
MAX_SAMPLES = 10_000  # of a validation problem at one evaluation
MAX_SETTING = 10**9  # of a number in a config
MAX_SIZE = 2**20  # of a whole number in a config
MAX_WORKERS = 1024  # processes that check responses
MAX_LAYERS = 1000
MAX_WIDTH = 2**20  # of an axis of a model's weights
MAX_VOCAB = 2**22
MAX_EVALUATIONS = 10_000  # values of the grid of C that the runs of a sweep are evaluated at
MAX_CELLS = 10_000  # runs of a sweep
MAX_REPLICATES = 10_000  # of a fit
