// Opens an ONNX file in ONNX Runtime for JavaScript and runs it. A message is the length of its JSON (4 bytes,
// big-endian), the JSON, and the bytes of the tensors that it lists, one after another.

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: globalThis.Float16Array ?? Uint16Array, bool: Uint8Array,
  int64: BigInt64Array, int32: Int32Array, int16: Int16Array, int8: Int8Array,
  uint64: BigUint64Array, uint32: Uint32Array, uint16: Uint16Array, uint8: Uint8Array,
};

/** A message's JSON, and its tensors by name. */
export function unpack(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
  const message = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const arrays = {};
  let at = 4 + length;
  for (const { name, dtype, shape, size } of message.tensors) {
    const { buffer } = bytes.slice(at, at + size); // a copy begins where its type wants it
    arrays[name] = { dtype, shape, data: new ARRAYS[dtype](buffer) };
    at += size;
  }
  return [message, arrays];
}

/** The bytes of a message with tensors of ONNX Runtime, by name. */
export function pack(message, tensors = {}) {
  const parts = Object.values(tensors).map(({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  const listed = Object.entries(tensors).map(([name, tensor], at) => (
    { name, dtype: tensor.type, shape: tensor.dims, size: parts[at].length }));
  const text = new TextEncoder().encode(JSON.stringify({ ...message, tensors: listed }));
  const bytes = new Uint8Array(4 + text.length + parts.reduce((sum, part) => sum + part.length, 0));
  new DataView(bytes.buffer).setUint32(0, text.length);
  bytes.set(text, 4);
  let at = 4 + text.length;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** The nodes that a session has put on the processor, `[operator, name]`, by the log of its making: nothing else says so. */
export function onProcessor(lines) {
  const nodes = [];
  let provider = '';
  for (const line of lines) {
    provider = /placed on \[(\w+)\]/.exec(line)?.[1] ?? provider;
    const node = /VerifyEachNodeIsAssignedToAnEp\] +(\S+) \((.*)\)/.exec(line);
    if (node && provider === 'CPUExecutionProvider') nodes.push(node.slice(1));
  }
  return nodes;
}

/** What answers messages: `open` once, then `run`. An exception is an answer, too. */
export function answering(ort, read) {
  let session, quiet = {};

  async function open({ model, external, provider, threads, options }) {
    if (ort.env.wasm) ort.env.wasm.numThreads = threads;
    const adapter = provider === 'webgpu' ? await globalThis.navigator?.gpu?.requestAdapter() : undefined;
    if (provider === 'webgpu' && !adapter) throw new Error('this browser gives no adapter of WebGPU');
    const device = adapter ? adapter.info.description || adapter.info.architecture || adapter.info.vendor : '';
    const half = !adapter || adapter.features.has('shader-f16');
    const began = performance.now();
    const externalData = await Promise.all(external.map(async (path) => ({ path, data: await read(path) })));
    const settings = { executionProviders: [provider], intraOpNumThreads: threads, interOpNumThreads: 1, ...options };
    if (externalData.length) settings.externalData = externalData;
    const lines = [];
    if (adapter) {
      let making = true;
      for (const kind of ['log', 'info', 'debug', 'warn', 'error']) console[kind] = (line) => making && lines.push(`${line}`);
      session = await ort.InferenceSession.create(await read(model), { ...settings, logSeverityLevel: 0 });
      [making, quiet] = [false, { logSeverityLevel: 2 }];
    } else {
      session = await ort.InferenceSession.create(await read(model), settings);
    }
    return [{ device, half, on_processor: onProcessor(lines), ms: performance.now() - began }];
  }

  async function run({ outputs }, arrays) {
    const feeds = {};
    for (const [name, { dtype, shape, data }] of Object.entries(arrays)) feeds[name] = new ort.Tensor(dtype, data, shape);
    const began = performance.now();
    const results = await session.run(feeds, outputs, quiet);
    return [{ ms: performance.now() - began }, results];
  }

  return async (bytes) => {
    try {
      const [message, arrays] = unpack(bytes);
      return pack(...await (message.op === 'open' ? open(message) : run(message, arrays)));
    } catch (error) {
      return pack({ error: String(error?.message ?? error) });
    }
  };
}
