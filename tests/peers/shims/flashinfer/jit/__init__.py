"""FlashInfer's compilation ahead of its tests: nothing is compiled."""


class JitSpec:
    pass


class MissingJITCacheError(RuntimeError):
    pass


def build_jit_specs(*args, **kwargs):
    pass


def __getattr__(name):
    if name.startswith("gen_"):
        return lambda *args, **kwargs: JitSpec()
    raise AttributeError(name)
