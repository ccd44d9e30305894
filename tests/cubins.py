"""Kernels in Triton, compiled for cards that are not there: what the interpreter takes need not be
what the compiler takes.
"""

import json
import os
import re
import subprocess
import sys

CARDS = (80, 90)
"""Compute capabilities."""


def texts_of(module, kernel, signature, variants):
    """The kernel in Triton's own language, for every variant and card.

    signature: the types of its arguments, constants left out. variants: its constants; those that
    are types by their names.
    """
    job = json.dumps([module, kernel, signature, variants])
    done = subprocess.run(
        [sys.executable, __file__, job],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def offsets_of(text):
    """The types of the offsets that are added to pointers, block by block."""
    return re.findall(r"tt\.addptr .* : tensor<\d+x!tt\.ptr<\w+>>, tensor<\d+x(\w+)>", text)


def _compile(module, kernel, signature, variants):
    from importlib import import_module

    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {"float32": tl.float32, "float16": tl.float16, "bfloat16": tl.bfloat16}
    types |= {f"int{bits}": getattr(tl, f"int{bits}") for bits in (8, 16, 32, 64)}
    found = []
    for constants in variants:
        constants = {name: types.get(value, value) for name, value in constants.items()}
        source = ASTSource(
            fn=getattr(import_module(module), kernel),
            signature=signature | dict.fromkeys(constants, "constexpr"),
            constexprs=constants,
        )
        for card in CARDS:
            made = triton.compile(source, target=GPUTarget("cuda", card, 32))
            assert made.asm["cubin"]
            found.append(made.asm["ttir"])
    print(json.dumps(found))


if __name__ == "__main__":
    _compile(*json.loads(sys.argv[1]))
