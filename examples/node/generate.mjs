// Writes an output for each line of standard input: node generate.mjs BUNDLE [--ids] < texts.txt
// With --ids it writes token ids in place of text.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Tokenizer } from "@huggingface/tokenizers";
import { InferenceSession, Tensor } from "onnxruntime-node";

// Integers of the graph are BigInts here, and its float32 are numbers.
const settings = {
  num_beams: 4n,
  max_new_tokens: 47n,
  min_new_tokens: 0n,
  length_penalty: 1,
  no_repeat_ngram_size: 3n,
  repetition_penalty: 1,
  early_stopping: 1n, // 0 is false, 1 is true, 2 is "never"
  num_return_sequences: 1n,
  temperature: 0, // above 0, tokens are drawn
  top_k: 50n,
  top_p: 1,
  min_p: 0,
  seed: 0n,
};

const scalar = (value) =>
  typeof value === "bigint"
    ? new Tensor("int64", BigInt64Array.of(value), [])
    : new Tensor("float32", Float32Array.of(value), []);

const [bundle, ids] = process.argv.slice(2);
const json = (name) => JSON.parse(readFileSync(`${bundle}/tokenizer/${name}`, "utf8"));
const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));
const session = await InferenceSession.create(`${bundle}/generate.onnx`);
const scalars = Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, scalar(value)]));

for await (const line of createInterface({ input: process.stdin })) {
  const source = BigInt64Array.from(tokenizer.encode(line).ids, BigInt);
  const inputs = {
    input_ids: new Tensor("int64", source, [1, source.length]),
    attention_mask: new Tensor("int64", source.map(() => 1n), [1, source.length]),
  };
  const { sequences, lengths } = await session.run({ ...inputs, ...scalars });
  const tokens = Array.from(sequences.data.slice(0, Number(lengths.data[0])), Number);
  console.log(ids ? tokens.join(" ") : tokenizer.decode(tokens, { skip_special_tokens: true }));
}
