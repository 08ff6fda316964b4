"""The part of the build that setup.cfg has no words for: C, which an installation without a compiler goes without."""

from setuptools import Extension, setup

OPTIONS = {"optional": True, "extra_compile_args": ["-O3"]}

setup(
    ext_modules=[
        Extension("ringfeed.sharding._kernels", ["sharding/kernels.c"], **OPTIONS),
        Extension("ringfeed.pipeline._view_ops", ["pipeline/view_ops.c"], libraries=["dl"], **OPTIONS),
    ]
)
