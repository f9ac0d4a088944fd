"""The zoo: small models of several families, trained from nothing on text and speech that are made here."""
