// What the reader in TypeScript makes of texts: node read.mjs MODULES READER BUNDLE cpu|wasm < TEXTS.json
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, reader, bundle, provider] = process.argv.slice(2);
const { load } = await import(pathToFileURL(`${reader}/index.js`));
const of = createRequire(`${modules}/`);
const ort = provider === "cpu" ? of("onnxruntime-node") : await import(pathToFileURL(of.resolve("onnxruntime-web")));
const { texts, pairs, bad } = JSON.parse(readFileSync(0, "utf8"));
const said = async (call) => call().then(() => "", (error) => `${error.constructor.name}: ${error.message}`);
const told = {};
try {
  const model = await load(bundle, { ort, providers: [provider], threads: 1 });
  const lists = (rows) => rows.map((row) => Array.from(row));
  if (texts) told.vectors = lists(await model.embed(texts));
  if (pairs) told.scores = lists(await model.predict(pairs));
  told.checks = (await model.selftest()).length;
  told.errors = {};
  for (const [name, shape] of Object.entries(bad ?? {})) {
    const feeds = Object.fromEntries(model.io.inputs.map((spec) => [spec.name, {
      type: "int64", dims: shape, data: new BigInt64Array(shape[0] * shape[1]).fill(name === "value" ? 99999n : 1n),
    }]));
    if (name === "missing") delete feeds.input_ids;
    if (name === "unknown") feeds.other = feeds.input_ids;
    told.errors[name] = await said(() => model.run(feeds));
  }
  if (bad) {
    told.errors.number = await said(() => model.embed([3]));
    told.errors.none = await said(() => model.embed([]));
    told.errors.prompt = await said(() => model.embed(["a"], { prompt: "no such" }));
    told.errors.kind = await said(() => model.predict(["a"]));
  }
} catch (error) {
  told.refused = `${error.constructor.name}: ${error.message}`;
}
console.log(JSON.stringify(told));
