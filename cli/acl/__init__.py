"""`ledgermq acl import`: converts the ACL file of RocketMQ 4.x into users and policies.

Reading order: `command` (arguments), `files` (YAML), `importing` (requests).
"""
