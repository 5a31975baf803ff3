"""The pages of the console, one file for each.

`overview` comes first; then `topics` and `topic`, `messages` and the live `tail`, `groups` and
`reset_group`, `clients`, `nodes` (brokers and managers), `brokers` (actions on them), and `login`.

In: a request that passed `csrf`, and the newest `cluster_snapshot`. Out: a template with its
values, or a redirect after a form. Each file adds its routes with `add_to`. Pages change things by
the same functions as the API. Only `gateway/console` imports this package.
"""
