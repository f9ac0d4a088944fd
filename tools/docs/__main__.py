"""Write the tables of the reference pages that are made from the code: `make reference`."""

from tools.docs.tables import pages_with_tables

if __name__ == "__main__":
    for path, text in pages_with_tables().items():
        if path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path}")
