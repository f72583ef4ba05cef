// One stream of a GGUF model on CPU: `node llama_cpp.mjs FILE THREADS TOKENS` prints tokens per CPU-second of this process.
import {getLlama} from "node-llama-cpp";

const [modelPath, threads, count] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: threads});
const model = await llama.loadModel({modelPath});
const context = await model.createContext({threads, contextSize: 512});
const prompt = Array.from({length: 16}, (_, index) => 1000 + 37 * index);
let begun;
let got = 0;
for await (const _ of context.getSequence().evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    begun ??= process.cpuUsage(); // behind the first token, as for the other engines
    if (got++ === count) break;
}
if (got <= count) throw new Error(`only ${got} tokens`);
const used = process.cpuUsage(begun);
console.log(count / ((used.user + used.system) / 1e6));
process.exit(0);
