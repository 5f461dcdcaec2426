// The vectors of texts, by transformers.js: node embed.mjs MODULES FOLDER [DTYPE] < TEXTS.json
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, folder, dtype = "fp32"] = process.argv.slice(2);
const found = createRequire(`${modules}/`).resolve("@huggingface/transformers");
const { env, pipeline } = await import(pathToFileURL(found));
env.allowRemoteModels = false;
env.localModelPath = dirname(folder);
const extract = await pipeline("feature-extraction", basename(folder), { dtype });
const vectors = await extract(JSON.parse(readFileSync(0, "utf8")), { pooling: "mean", normalize: true });
console.log(JSON.stringify(vectors.tolist()));
