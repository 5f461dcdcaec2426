// node node.mjs PACKAGE: answers messages of session.mjs on stdin, each behind its length (4 bytes, big-endian).
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { answering } from './session.mjs';

const output = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // what a library prints is no answer
const [, , place, entry] = process.argv;
const ort = entry ? await import(pathToFileURL(entry)) : createRequire(import.meta.url)(place);
// The native package reads a file itself, and finds its weights beside it.
const answer = answering(ort, entry ? async (path) => new Uint8Array(await readFile(path)) : (path) => path);

let waiting = Buffer.alloc(0);
for await (const chunk of process.stdin) {
  waiting = Buffer.concat([waiting, chunk]);
  while (waiting.length >= 4 && waiting.length >= 4 + waiting.readUInt32BE(0)) {
    const size = waiting.readUInt32BE(0);
    const answered = await answer(new Uint8Array(waiting.subarray(4, 4 + size)));
    waiting = waiting.subarray(4 + size);
    const head = Buffer.alloc(4);
    head.writeUInt32BE(answered.length);
    output(head);
    output(answered);
  }
}
