"""Texts that an export is checked with."""

SAMPLE_TEXTS = (
    "The town council of Harwick voted on Tuesday to repair the old stone bridge before winter. Work begins in March "
    "and will cost 240,000 pounds, the mayor said. Buses are to use the northern road until then.",
    "A library opens at nine.",
    "Heavy rain fell over the coast for three days; two ferries stayed in port, and 1,200 homes had no power.",
    "Naïve café owners paid €5.50 (or $6.00) for 'fresh' bread - why?",
)
"""Inputs of the comparison with torch: several lengths, digits, quotes, letters beyond ASCII."""

CALIBRATION_TEXTS = (
    *SAMPLE_TEXTS,
    "The heart pumps blood through two loops. The right half sends it to the lungs, where it gives up "
    "carbon dioxide and takes in oxygen; the left half sends it to all other organs. A valve between the "
    "chambers keeps it from flowing back. At rest the heart beats about seventy times a minute.",
    "Dear Ms Okafor, thank you for your letter of 3 May. We are sorry that the lamp arrived with a broken "
    "shade. A new one leaves our store tomorrow, and you need not return the old one. Yours sincerely, Tom "
    "Birch",
    '"You can\'t mean that," said Anna, and put the cup down so hard that the spoon jumped. Outside, the '
    'last tram of the evening went by. Her brother looked at the floor. "I sold it in the spring," he said '
    'at last. "Somebody had to."',
    "Step 1: Peel 500 g of potatoes and cut them into thin slices. Step 2: Heat two spoons of oil in a wide "
    "pan. Step 3: Fry the slices for ten minutes, add four beaten eggs, salt and pepper, and turn the cake "
    "once with the help of a plate.",
    'def moving_average(values, width):\n    """Return the mean of each window of the given width."""\n    '
    'if width < 1:\n        raise ValueError(f"width {width} is below 1")\n    total, means = 0.0, []\n    '
    "for index, value in enumerate(values):\n        total += value\n        if index >= "
    "width:\n            total -= values[index - width]\n        if index >= width - 1:\n            "
    "means.append(total / width)\n    return means\n",
    "SELECT c.name, COUNT(*) AS orders, SUM(o.total) AS spent\nFROM customers AS c JOIN orders AS o ON "
    "o.customer_id = c.id\nWHERE o.placed_at >= '2024-01-01'\nGROUP BY c.name HAVING SUM(o.total) > 1000 "
    "ORDER BY spent DESC LIMIT 20;",
    '{"id": 4711, "name": "desk lamp", "price": {"amount": 39.9, "currency": "EUR"}, "tags": ["light", '
    '"office"], "in_stock": true, "sizes": null}',
    "User: My bicycle chain keeps jumping off when I change gears. What should I check first?\nAssistant: "
    "Check the two limit screws of the rear derailleur first. They stop the chain from moving past the "
    "largest and the smallest sprocket. If they are right, look for a bent hanger, a worn chain or loose "
    "cables.",
    "Question: A train leaves at 9:40 and arrives at 13:05. It stops for 12 minutes on the way. How long "
    "does it move?\nAnswer: From 9:40 to 13:05 are 3 hours and 25 minutes, which is 205 minutes. Without "
    "the stop it moves for 205 - 12 = 193 minutes, or 3 hours and 13 minutes.",
    "Write a short poem about the sea in autumn.\n\nGrey light on the harbour wall,\nthe gulls have nothing "
    "more to say;\na rope, a bell, the water's fall,\nand one small boat that went away.",
    "# Release notes\n\n## Version 2.3\n\n- Faster start: the index is read only when it is needed.\n- A "
    "wrong time zone in reports is fixed (thanks to everybody who wrote to us).\n- `config.toml` may name "
    'several folders:\n\n```\n[folders]\npaths = ["/data/a", "/data/b"]\n```',
    "Der Zug nach Lindau hat wegen einer Störung an der Strecke etwa vierzig Minuten Verspätung. Reisende "
    "können mit derselben Fahrkarte den Bus vor dem Bahnhof nehmen. Wir bitten um Entschuldigung.",
    "Le musée rouvre samedi après deux ans de travaux. Les visiteurs y trouveront une salle consacrée aux "
    "cartes anciennes, un café et un petit jardin; l'entrée reste gratuite le premier dimanche du mois.",
    "La cooperativa vendió el año pasado once mil toneladas de aceite, un doce por ciento más que en 2022. "
    '"La lluvia llegó a tiempo", explicó su presidenta, "pero los precios siguen siendo muy bajos".',
    "Gli scavi hanno riportato alla luce una strada romana larga quattro metri. Secondo gli archeologi "
    "collegava il porto con le terme, e fu usata per più di tre secoli.",
    "Após a reunião, os moradores decidiram plantar árvores ao longo do rio e fechar a rua aos carros "
    "durante o fim de semana.",
    "В понедельник в городе открылась новая станция метро. Поезда ходят каждые четыре минуты, и дорога до "
    "центра теперь занимает четверть часа.",
    "这家小书店开在老街的尽头，已经有三十多年了。店主每天早上八点开门，给常来的客人泡一壶茶，然后开始整理昨天收到的旧书。",
    "昨日の夜、強い風で駅前の大きな木が倒れました。けが人はいませんでしたが、電車は一時間ほど止まり、多く"
    "の人がバスを待っていました。",
    "أعلنت المدينة عن افتتاح حديقة جديدة قرب النهر، وتضم ملاعب للأطفال ومسارات للدراجات ومكتبة صغيرة.",
    "नदी के किनारे बसे इस गाँव में हर साल बसंत में एक बड़ा मेला लगता है, जहाँ लोग दूर-दूर से आते हैं।",
    "Abstract. We study how the error of a sum of n rounded numbers grows with n. If the roundings are "
    "independent, the error has a standard deviation of order sqrt(n) u, where u is the unit roundoff; in "
    "the worst case it is n u. Experiments with 10^6 terms agree with the first estimate within 3 %.",
)
"""Texts whose activations round the matrices of int8 and int4: prose, letters, talk, code, data, chat, and several
languages."""

TOKENIZER_TEXTS = (
    *SAMPLE_TEXTS,
    "It is n't so , they 're late ! Do n't ask ? I 'm , you 've .",
    "  two  spaces\tand a tab\nand a new line  ",
    "東京の図書館 \U0001f600 Ελλάδα \u200bzero width",
    "<s> </s> <pad> <unk> <mask> [MASK] >>fr<<",
    "",
)
"""Texts on which two readers of one tokenizer must agree: what clean-up, normalisers and special tokens treat."""
