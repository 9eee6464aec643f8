"""SQL92 filters over message properties: `compile_filter(text)` returns a function from encoded properties to bool."""

from broker.sql.errors import SqlSyntaxError
from broker.sql.parser import PropertyFilter, compile_filter

__all__ = ["PropertyFilter", "SqlSyntaxError", "compile_filter"]
