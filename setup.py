"""The part of the build that setup.cfg has no words for: C, which an installation without a compiler goes without."""

from setuptools import Extension, setup

OPTIONS = {"optional": True, "extra_compile_args": ["-O3"]}

setup(
    ext_modules=[
        Extension("ringfeed.sharding.compute._kernels", ["sharding/compute/kernels.c"], **OPTIONS),
        Extension(
            "ringfeed.pipeline.deliver._string_views", ["pipeline/deliver/string_views.c"], libraries=["dl"], **OPTIONS
        ),
        Extension("ringfeed.training.records._clock", ["training/records/clock.c"], libraries=["dl"], **OPTIONS),
    ]
)
