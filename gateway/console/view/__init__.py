"""How the console shows things: numbers, times, bytes and settings as people read them. Pure.

`format` has numbers, times, states and tables of them; `payload` shows bytes that may be hostile;
`settings` writes settings in words; `retention` turns forms about retention into settings and back.

In: values as the cluster reports them. Out: text and small tables for templates, which escape them.
It asks nothing and knows no request. Pages and `live` import it.
"""
