// Opens a bundle that `attnport bundle` wrote, in the browser or in Node, with the ONNX Runtime that it is given:
// onnxruntime-web or onnxruntime-node. Files are compared with their digests, and the golden cases run, before it is used.

import { atLeast, BundleError, checkFeeds, FeedError, IntegrityError, takes } from './contract.js';
import type { Contract, Dim, Tensor, TypedArray } from './contract.js';
import { wordPiece, type Row, type Text, type Words } from './wordpiece.js';

export { BundleError, FeedError, IntegrityError } from './contract.js';
export type { Contract, Tensor, TypedArray } from './contract.js';
export type { Text } from './wordpiece.js';

/** As much of onnxruntime-common as is used here. */
export interface OnnxRuntime {
  Tensor: new (type: any, data: any, dims: readonly number[]) => Tensor;
  InferenceSession: { create(model: any, options?: any): Promise<Session> };
}
interface Session { run(feeds: any, outputs?: any): Promise<Record<string, any>>; release(): Promise<void> }
interface Form {
  file: string; external: string[]; plan: string; runtime: string; provider: string | null; dtypes: Record<string, string>;
}
interface Bound { case: string; output: string; plan: string; rms_bound: number; max_bound: number }
interface Manifest {
  format: string; version: number; name: string; io: Contract; order: string[]; forms: Record<string, Form>;
  goldens: { file: string; bounds: Bound[] }; tokenizer: { file: string; chars: string | null } | null;
  files: Record<string, { bytes: number; sha256: string }>; text_limit: number | null;
  prompts: { named: Record<string, string>; default: string };
}

export interface Options {
  /** The package onnxruntime-web or onnxruntime-node, imported. */
  ort: OnnxRuntime;
  /** The form to open; by default the first for ONNX Runtime on the CPU. */
  form?: string;
  /** Where the form runs: `wasm` or `webgpu` of onnxruntime-web, `cpu` of onnxruntime-node. By default what it chooses. */
  providers?: string[];
  /** Whether the golden cases run before the model is returned; true by default. */
  selftest?: boolean;
  /** Threads of ONNX Runtime; by default what it chooses. */
  threads?: number;
}
/** One output of a golden case: its errors against the float64 reference. */
export interface Result { case: string; output: string; passed: boolean; reason: string; rms: number; max: number }

const DTYPES: Record<string, [string, new (buffer: ArrayBuffer) => TypedArray]> = {
  F64: ['float64', Float64Array], F32: ['float32', Float32Array], F16: ['float16', Uint16Array],
  I64: ['int64', BigInt64Array], I32: ['int32', Int32Array], BOOL: ['bool', Uint8Array],
};
const IDS = 'input_ids', TYPES = 'token_type_ids', POOLED = 'pooled_mask', ATTENDED = 'attended_mask';
/** Places of a batch, padding included; a batch of fewer than `FULL` is slower per place, and takes texts of any length. */
const TOKENS = 1024, FULL = 128, LIKE = 0.75;

/**
 * Opens a bundle.
 *
 * Throws IntegrityError where a file is not the one that was bundled, BundleError where the folder is no bundle, has no
 * form for ONNX Runtime, or computes other numbers here.
 *
 * @param source The URL of the bundle's folder; in Node, its path.
 */
export async function load(source: string | URL, options: Options): Promise<Model> {
  const read = reader(source);
  const manifest: Manifest = JSON.parse(new TextDecoder().decode(await read('bundle.json')));
  if (manifest.format !== 'attnport-bundle' || manifest.version !== 1) {
    throw new BundleError(`bundle.json: got format '${manifest.format}', version ${manifest.version}; ` +
      "expected 'attnport-bundle', 1.");
  }
  const fits = ({ runtime, provider, dtypes }: Form) => runtime === 'onnxruntime' && provider === 'CPUExecutionProvider' &&
    [...manifest.io.inputs, ...manifest.io.outputs].every((spec) => dtypes[spec.name] === spec.dtype);
  const name = options.form ?? manifest.order.find((each) => fits(manifest.forms[each]));
  const form = manifest.forms[name ?? ''];
  if (!name || !form || !fits(form)) {
    throw new BundleError(`${name ?? 'the bundle'}: got forms ${manifest.order.join(', ')}; expected one for ONNX Runtime ` +
      'on the CPU. Make one with: attnport bundle out/ -o app/ --form ort_cpu');
  }

  async function checked(file: string): Promise<Uint8Array> {
    const recorded = manifest.files[file];
    if (!recorded) throw new IntegrityError(`${file} is not listed in bundle.json.`);
    const bytes = await read(file);
    const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes as BufferSource));
    const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
    if (bytes.length !== recorded.bytes || sha256 !== recorded.sha256) {
      throw new IntegrityError(`${file}: got ${bytes.length} bytes with the digest ${sha256.slice(0, 12)}…; ` +
        `expected ${recorded.bytes} with ${recorded.sha256.slice(0, 12)}…: it is not the file that was bundled.`);
    }
    return bytes;
  }

  const text = async (file: string) => new TextDecoder().decode(await checked(file));
  const table = manifest.tokenizer?.chars;
  const words = table ? wordPiece(await text(manifest.tokenizer!.file), await text(table)) : null;
  const golden = safetensors(await checked(manifest.goldens.file), manifest.goldens.file);
  const session = await options.ort.InferenceSession.create(await checked(form.file), {
    ...(options.providers ? { executionProviders: options.providers } : {}),
    ...(options.threads ? { intraOpNumThreads: options.threads } : {}),
    externalData: await Promise.all(form.external.map(async (path) => ({ path, data: await checked(path) }))),
  });
  const model = new Model(manifest, name, options.ort, session, words, golden);
  try {
    const failed = (options.selftest ?? true) && (await model.selftest()).find((result) => !result.passed);
    if (!failed) return model;
    throw new BundleError(`${manifest.name} computes other numbers here: ${failed.case} ${failed.output}: ${failed.reason}.`);
  } catch (error) {
    await model.close();
    throw error;
  }
}

/** An open bundle. */
export class Model {
  /** Use `load`. */
  constructor(
    private readonly manifest: Manifest, readonly form: string, private readonly ort: OnnxRuntime,
    private readonly session: Session, private readonly words: Words | null,
    private readonly golden: (name: string) => Tensor,
  ) {}

  /** The contract: inputs, outputs, dims and masks. */
  get io(): Contract { return this.manifest.io; }

  /** The outputs by name. Throws FeedError for inputs that do not fit the contract. */
  async run(feeds: Readonly<Record<string, Tensor>>): Promise<Record<string, Tensor>> {
    checkFeeds(this.io, feeds);
    const tensors = Object.entries(feeds).map(([name, { type, data, dims }]) => [name, new this.ort.Tensor(type, data, dims)]);
    return await this.session.run(Object.fromEntries(tensors), this.io.outputs.map((spec) => spec.name));
  }

  /**
   * The vector of each text, in their order; those of sentence-transformers' `encode`.
   *
   * @param texts Texts of any number; they run in batches of like length.
   * @param options.prompt The name of the prompt to put before each text; by default the model's own, "" is none.
   */
  async embed(texts: readonly string[], options: { prompt?: string } = {}): Promise<Float32Array[]> {
    const outputs = this.io.outputs.filter(({ dims }) => dims.length === 2 && typeof dims[1] === 'number');
    if (outputs.length !== 1 || ['scores', 'logits'].includes(outputs[0].name)) {
      throw new FeedError(`embed: got the outputs ${this.io.outputs.map((spec) => spec.name).join(', ')}; ` +
        'expected one [batch, number], and neither scores nor logits.');
    }
    return this.rows(texts, outputs[0].name, this.prompt(options.prompt));
  }

  /**
   * The scores of each text or pair of texts, of a cross-encoder or classifier: a number for each class.
   *
   * @param options.prompt As of `embed`.
   */
  async predict(texts: readonly Text[], options: { prompt?: string } = {}): Promise<Float32Array[]> {
    const output = ['scores', 'logits'].find((name) => this.io.outputs.some((spec) => spec.name === name));
    if (!output) throw new FeedError('predict: the model has neither scores nor logits.');
    const rows = await this.rows(texts, output, this.prompt(options.prompt));
    // One logit is that of a reranker, whose score is the sigmoid of it, as of sentence-transformers' CrossEncoder.
    const one = output === 'logits' && this.io.outputs.some((spec) => spec.name === output && spec.dims[1] === 1);
    return one ? rows.map((row) => row.map((logit) => 1 / (1 + Math.exp(-logit)))) : rows;
  }

  /** Runs the golden cases: whether the model computes here what it computed where it was bundled. */
  async selftest(): Promise<Result[]> {
    const results: Result[] = [], { goldens, forms } = this.manifest;
    const bounds = goldens.bounds.filter(({ plan }) => plan === forms[this.form].plan);
    for (const name of new Set(bounds.map((bound) => bound.case))) {
      const feeds = this.io.inputs.map((spec) => [spec.name, this.golden(`${name}/in/${spec.name}`)]);
      const [outputs, problem] = await this.run(Object.fromEntries(feeds))
        .then((found) => [found, ''], (error) => [{}, String(error.message ?? error)]) as [Record<string, Tensor>, string];
      for (const bound of bounds.filter((each) => each.case === name)) {
        const [expected, valid] = ['out', 'valid'].map((what) => this.golden(`${name}/${what}/${bound.output}`));
        results.push(compared(bound, outputs[bound.output], expected, valid, problem));
      }
    }
    if (!results.length) throw new BundleError(`there is no golden case of ${this.form}.`);
    return results;
  }

  /** Frees the model. */
  close(): Promise<void> { return this.session.release(); }

  /** The prompt of a name. `query` and `document` are names in every model, and no prompt where it has none. */
  private prompt(name = this.manifest.prompts.default): string {
    const { named } = this.manifest.prompts;
    if (Object.hasOwn(named, name)) return named[name];
    if (['', 'query', 'document'].includes(name)) return '';
    throw new FeedError(`prompt: got '${name}'; expected one of ${[...Object.keys(named), 'query', 'document'].join(', ')}.`);
  }

  private async rows(texts: readonly Text[], output: string, prompt: string): Promise<Float32Array[]> {
    const { words } = this;
    if (!words) throw new BundleError('the bundle has no tokenizer that is read here; give token ids to run.');
    if (!texts.length) throw new FeedError('texts: got none; expected one or more.');
    const other = texts.findIndex((text) => ![text].flat().every((each) => typeof each === 'string'));
    if (other >= 0) throw new FeedError(`texts[${other}]: got ${typeof texts[other]}; expected text, or a pair of texts.`);
    const ids = this.io.inputs.find((each) => each.name === IDS);
    if (!ids || this.io.inputs.some((each) => each.name === ATTENDED)) {
      throw new FeedError('the model does not read text as this reader gives it; give its inputs to run.');
    }
    const [item, place] = ids.dims.map((dim): Dim => this.io.dims.find((each) => each.name === dim) ??
      { name: '', min: Number(dim), opt: Number(dim), max: Number(dim), step: 1 });
    const longest = Math.min(place.max, this.manifest.text_limit ?? place.max);
    const rows = texts.map((text) => words.encode([text].flat().map((part, at) => at ? part : prompt + part), longest));
    const before = prompt ? words.encode([prompt], longest).ids : [];
    const unpooled = before.length - Number(words.special.has(before[before.length - 1]));
    const found: Float32Array[] = new Array(rows.length);
    for (const batch of batches(rows.map((row) => atLeast(place, row.ids.length)), item)) {
      const filled = Array.from({ length: atLeast(item, batch.length) }, (_, at) => rows[batch[at] ?? batch[0]]);
      const feeds = this.padded(filled, atLeast(place, filled[0].ids.length), words.padId, unpooled);
      const { data, dims } = (await this.run(feeds))[output];
      const width = data.length / dims[0];
      batch.forEach((at, row) => { found[at] = (data as Float32Array).slice(row * width, (row + 1) * width); });
    }
    return found;
  }

  private padded(rows: Row[], size: number, padId: number, unpooled: number): Record<string, Tensor> {
    const feeds: Record<string, Tensor> = {};
    if (rows.some((row) => row.ids.length < size) && !this.io.masks.some((mask) => mask.kinds.includes('padding'))) {
      throw new FeedError('the model takes no padding mask; give every item its full length.');
    }
    for (const { name, dtype, dims } of this.io.inputs) {
      const mask = this.io.masks.find((each) => each.input === name && each.kinds.includes('padding'));
      const [hidden, real] = mask?.polarity === 'hide' ? [1, 0] : mask?.polarity === 'additive' ? [-Infinity, 0] : [0, 1];
      if (dims.length !== 2 || (mask ? mask.carries !== 'mask' || mask.kinds.length > 1 : ![IDS, TYPES].includes(name))) {
        throw new FeedError(`input '${name}': this reader does not make it of texts; give the inputs to run.`);
      }
      const values = rows.flatMap(({ ids, types }) => Array.from({ length: size }, (_, at) =>
        name === IDS ? ids[at] ?? padId : name === TYPES ? types[at] ?? 0
          : at < ids.length && !(name === POOLED && at < unpooled) ? real : hidden));
      const data = dtype === 'int64' ? BigInt64Array.from(values, BigInt) : dtype === 'int32' ? Int32Array.from(values)
        : dtype === 'bool' ? Uint8Array.from(values) : Float32Array.from(values);
      feeds[name] = { type: dtype, dims: [rows.length, size], data };
    }
    return feeds;
  }
}

/** The places of each batch in the list of texts: those of like length run together, the longest first. */
function* batches(lengths: number[], sizes: Dim): Generator<number[]> {
  const order = lengths.map((_, at) => at).sort((one, other) => lengths[other] - lengths[one]);
  for (let begin = 0; begin < order.length;) {
    const longest = lengths[order[begin]];
    const room = Math.floor(Math.min(Math.floor(TOKENS / longest), sizes.max) / sizes.step) * sizes.step;
    const last = Math.min(begin + Math.max(room, atLeast(sizes, 1)), order.length);
    let end = begin + 1;
    while (end < last && ((end - begin) * longest < FULL || lengths[order[end]] >= LIKE * longest || !takes(sizes, end - begin))) {
      end += 1;
    }
    yield order.slice(begin, end);
    begin = end;
  }
}

function compared(bound: Bound, got: Tensor | undefined, expected: Tensor, valid: Tensor, problem: string): Result {
  const [shape, wanted] = [got?.dims ?? [], expected.dims].map((dims) => dims.join(', '));
  let reason = got ? '' : problem || 'the output is missing';
  if (got && shape !== wanted) reason = `got shape [${shape}]; expected [${wanted}]`;
  const values = got && !reason ? Array.from<number | bigint, number>(got.data, Number) : [];
  if (!values.every(Number.isFinite)) reason = 'elements are NaN or Inf';
  const inner = expected.data.length / Math.max(valid.data.length, 1); // elements for each one of `valid`
  const errors = values.map((value, at) => Math.abs(value - Number(expected.data[at])))
    .filter((_, at) => valid.data[Math.floor(at / inner)]);
  if (values.length && !errors.length) reason ||= 'no element to compare';
  const rms = Math.sqrt(errors.reduce((sum, error) => sum + error * error, 0) / Math.max(errors.length, 1));
  const max = errors.reduce((most, error) => Math.max(most, error), 0);
  // Written so that NaN does not pass.
  for (const [what, error, most] of [['RMS', rms, bound.rms_bound], ['max', max, bound.max_bound]] as const) {
    if (!(error <= most)) reason ||= `${what} error ${error.toExponential(2)} is over its bound ${most.toExponential(2)}`;
  }
  return { case: bound.case, output: bound.output, passed: !reason, reason, rms, max };
}

/** What gives the arrays of a safetensors file by their names. */
function safetensors(bytes: Uint8Array, file: string): (name: string) => Tensor {
  const start = 8 + Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header: Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }> =
    JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  return (name) => {
    if (!header[name]) throw new IntegrityError(`${file}: there is no '${name}'.`);
    const { dtype, shape, data_offsets: [begin, end] } = header[name];
    if (!DTYPES[dtype] || start + end > bytes.length) throw new IntegrityError(`${file}: '${name}' is cut short, or of ${dtype}.`);
    const [type, Array] = DTYPES[dtype];
    return { type, dims: shape, data: new Array(bytes.slice(start + begin, start + end).buffer) };
  };
}

/** What reads the files of a folder: by the network, or from the disk in Node. */
function reader(source: string | URL): (name: string) => Promise<Uint8Array> {
  const place = String(source).replace(/\/*$/, '/');
  if ((globalThis as any).process?.versions?.node && !/^https?:/.test(place)) {
    // Not a literal, so that no bundler looks for it.
    const file = (name: string) => place.startsWith('file:') ? new URL(name, place) : place + name;
    return async (name) => new Uint8Array(await (await import(['node:fs', 'promises'].join('/'))).readFile(file(name)));
  }
  const base = new URL(place, globalThis.location?.href);
  return async (name) => {
    const answer = await fetch(new URL(name, base));
    if (!answer.ok) throw new BundleError(`${new URL(name, base)}: got status ${answer.status}.`);
    return new Uint8Array(await answer.arrayBuffer());
  };
}
