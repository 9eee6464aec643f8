"""Who asks, and may he: RocketMQ 5.3's users and policies (ACL 2.0).

    request --guard--> signature: who is it (users) --> access: what does it touch --> policy: may he (acls)

Reading order as drawn; `model` has users and policies as values, `settings` what a broker is told, `requests` serves
3001 to 3010. All but `requests` is pure: no clock, no socket, no file.
"""
