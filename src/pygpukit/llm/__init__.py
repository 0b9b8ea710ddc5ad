"""Language models: load one, go on with a text, or chat.

model = gp.llm.load("smollm2")                       # or a .gguf file, or a Hugging Face folder
print(model.generate("The moon is", max_tokens=40))
for piece in model.stream_chat([{"role": "user", "content": "Hello!"}]):
    print(piece, end="", flush=True)
"""

from .batch import Batch as Batch
from .batch import BatchPiece as BatchPiece
from .choice import TokenLogprobs as TokenLogprobs
from .model import GeneratedText as GeneratedText
from .model import LanguageModel as LanguageModel
from .model import TextStream as TextStream
from .model import from_arrays as from_arrays
from .model import load as load
