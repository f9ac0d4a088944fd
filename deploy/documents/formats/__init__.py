"""The formats of documents, a file each, whose value ``FORMAT`` says what it reads."""
