"""The endpoints of OpenAI's API: models, completions, chat completions, transcriptions and translations."""
