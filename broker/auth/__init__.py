"""Authentication and authorization with RocketMQ 5.3's users and policies (ACL 2.0).

    request --guard--> signature: which user --> access: which resources --> policy: whether the user may

Reading order: `guard`, `access`, `policy`, `requests` (serves codes 3001 to 3010). Users and policies as values are in
`broker.state.users`, settings in `broker.auth_settings`, the older `plain_acl.yml` in `plain_acl`. All but `requests`
is pure: no clock, no socket, no file.
"""
