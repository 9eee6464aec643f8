"""`ledgermq acl import`: the ACL file of RocketMQ 4.x, or a store of 5.x, as users and policies.

Reading order: `command` (arguments), `files` (YAML), `java_users` (RocksDB), `importing` (requests).
"""
