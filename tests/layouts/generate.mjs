// The tokens that transformers.js puts behind texts: node generate.mjs MODULES FOLDER [DTYPE] < TEXTS.json
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, folder, dtype = "fp32"] = process.argv.slice(2);
const found = createRequire(`${modules}/`).resolve("@huggingface/transformers");
const { AutoModelForCausalLM, AutoTokenizer, env } = await import(pathToFileURL(found));
env.allowRemoteModels = false;
env.localModelPath = dirname(folder);
const name = basename(folder);
const [tokenizer, model] = [await AutoTokenizer.from_pretrained(name), await AutoModelForCausalLM.from_pretrained(name, { dtype })];
tokenizer.padding_side = "left";
const tokens = tokenizer(JSON.parse(readFileSync(0, "utf8")), { padding: true });
const rows = (await model.generate({ ...tokens, max_new_tokens: 12, do_sample: false })).tolist();
console.log(JSON.stringify(rows.map((row) => row.slice(tokens.input_ids.dims[1]).map(Number))));
