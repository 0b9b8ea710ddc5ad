"""Functions that models are made of: products, mixtures of experts, attention, norms, activations, sampling.

    y = gp.nn.softmax(x)

They take and give arrays, and hold no state.
"""

from __future__ import annotations

from ._native import QuantizedWeight as QuantizedWeight
from ._native import attention as attention
from ._native import attention_cached as attention_cached
from ._native import attention_packed as attention_packed
from ._native import combine_experts as combine_experts
from ._native import conv1d as conv1d
from ._native import gated_linear as gated_linear
from ._native import geglu as geglu
from ._native import gelu as gelu
from ._native import gelu_tanh as gelu_tanh
from ._native import grouped_linear as grouped_linear
from ._native import layer_norm as layer_norm
from ._native import linear as linear
from ._native import lstm as lstm
from ._native import penalize as penalize
from ._native import quantize as quantize
from ._native import relu as relu
from ._native import rms_norm as rms_norm
from ._native import rope as rope
from ._native import rope_frequencies as rope_frequencies
from ._native import route as route
from ._native import sample as sample
from ._native import scaled_matmul as scaled_matmul
from ._native import sigmoid as sigmoid
from ._native import silu as silu
from ._native import softmax as softmax
from ._native import sort_by_expert as sort_by_expert
from ._native import swiglu as swiglu
from ._native import top_k as top_k
