// Times files of ONNX in onnxruntime-web, one thread, in node: node web.mjs PACKAGE ROUNDS < GIVEN.json. The sides take turns.
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { pathToFileURL } from 'node:url';

const [place, rounds] = process.argv.slice(2);
const ort = await import(pathToFileURL(`${place}/dist/ort.node.min.mjs`));
ort.env.wasm.numThreads = 1;
const { rows, sides } = JSON.parse(readFileSync(0, 'utf8'));
const bytes = (path) => new Uint8Array(readFileSync(path));

function feeds(names, batch) {
  const width = Math.max(...batch.map((at) => rows[at].length));
  const [ids, mask] = [0, 0].map(() => new BigInt64Array(batch.length * width));
  batch.forEach((at, row) => rows[at].forEach((token, column) => {
    ids[row * width + column] = BigInt(token);
    mask[row * width + column] = 1n;
  }));
  const of = { input_ids: ids, attention_mask: mask, token_type_ids: new BigInt64Array(ids.length) };
  return Object.fromEntries(names.map((name) => [name, new ort.Tensor('int64', of[name], [batch.length, width])]));
}

function opened({ model, external }) {
  const externalData = external.map((path) => ({ path: basename(path), data: bytes(path) }));
  return ort.InferenceSession.create(bytes(model), externalData.length ? { externalData } : {});
}

const runs = [];
for (const { name, schedules, ...side } of sides) {
  const session = await opened(side);
  for (const [schedule, batches] of Object.entries(schedules)) {
    const given = batches.map((batch) => feeds(session.inputNames, batch));
    runs.push({ side: name, schedule, session, given, ms: [] });
  }
}
for (let round = -1; round < Number(rounds); round += 1) { // the first is not counted
  for (const { session, given, ms } of runs) {
    const began = performance.now();
    for (const batch of given) await session.run(batch);
    if (round >= 0) ms.push(performance.now() - began);
  }
}
console.log(JSON.stringify(runs.map(({ side, schedule, ms }) => ({ side, schedule, ms }))));
