"""What all tests share: no test fails because the machine was slow."""

from hypothesis import settings

settings.register_profile("ledgermq", deadline=None)
settings.load_profile("ledgermq")
