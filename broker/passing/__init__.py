"""Requests that only the leader serves are passed on to it by every other member, so that clients may ask any member.

a member that follows                              the leader
client --request--> PassOn --hold--> LeaderLink ===> MemberRequests --RelayedClient--> the handler of all requests
client <--answer---   '<---------------------------------------- answer
"""
