"""How each attention that Python can import is called, as its authors would: layout, masks, schedulers, two output buffers.

Nothing here is timed or judged. A `Call` computes the problem once a `run()`; consecutive runs write to different outputs,
as ours do: most packages allocate the next one while the last is held, the others are handed two in turn.
`registry` lists the peers; each other file but `problem`, `call` and `layouts` is one package's.
"""

from .call import Call, TwoBufferCall
from .flashcore import flashcore_call
from .problem import DTYPES, Problem, Refused
from .registry import PEERS, available, peer_call

__all__ = ["DTYPES", "PEERS", "Call", "Problem", "Refused", "TwoBufferCall", "available", "flashcore_call", "peer_call"]
