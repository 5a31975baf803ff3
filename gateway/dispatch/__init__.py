"""Give a request to the function that answers it: an operation of the API, or a page of Flask.

`routes` finds what a method and path lead to. `head_check` refuses a request by its head, before
its body is read. `fast_path` runs operations without Flask, `wsgi` calls the application for
everything else.

In: heads and bodies that `gateway/http` has read. Out: answers. It has no socket and no thread: of
`gateway/http` it knows only the head and the answer. Only `gateway/app` imports it.
"""
