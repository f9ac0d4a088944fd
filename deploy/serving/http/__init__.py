"""The HTTP server: endpoints that clients of OpenAI and LibreTranslate know, in front of the worker that Triton uses.

app.py             the application: models, endpoints, errors
model.py           a served model: its worker, and how an endpoint runs a request
pending.py         a client's request between endpoint and worker
guards.py          what every request passes: identifier, key, size, log
errors.py          errors as each client expects them
streams.py         server-sent events
openai/            /v1: transcriptions, completions, chat completions, models
libretranslate.py  /translate, /languages
generate.py        /generate, as Triton's generate extension has it
run.py             the process: uvicorn, until a signal
page.html          the page at /
"""
