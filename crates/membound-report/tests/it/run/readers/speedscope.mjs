// Opens files with speedscope's own import code and prints what it holds of them.
//
// The package has no entry for programs: its page's script is run without a page, up to where that misses one, with
// the importer that the script would call handed out. Arguments: the package's directory, and the file.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [directory, file] = process.argv.slice(2);
const pages = path.join(directory, "dist/release");
const name = fs.readdirSync(pages).find((it) => /^speedscope-.*\.js$/.test(it));
const script = fs.readFileSync(path.join(pages, name), "utf8");
const begin = script.indexOf("(()=>{") + "(()=>{".length;
const importer = script.match(/"Importing as speedscope json file"\),([\w$]+)\(/)[1];
const opened = `${script.slice(0, begin)}globalThis.load=(it)=>${importer}(it);${script.slice(begin)}`;

const nothing = () =>
  new Proxy(function () {}, {
    get: (_, key) => (key === Symbol.toPrimitive ? () => "" : nothing()),
    apply: nothing,
    construct: nothing,
    set: () => true,
  });
const around = {
  console: { log() {}, assert() {} },
  document: nothing(),
  window: nothing(),
  location: nothing(),
  navigator: { userAgent: "" },
  setTimeout: () => 0,
  requestAnimationFrame: () => 0,
  TextDecoder,
  URL,
  performance,
};
const context = vm.createContext(around);
context.self = context;
context.global = context;
process.on("unhandledRejection", () => {});
try {
  vm.runInContext(opened, context);
} catch {
  // The page is not there.
}

const group = context.load(JSON.parse(fs.readFileSync(file, "utf8")));
const profiles = group.profiles.map((profile) => {
  const functions = {};
  profile.forEachFrame((frame) => {
    const known = functions[frame.name] ?? 0;
    functions[frame.name] = known + frame.getSelfWeight();
  });
  return { name: profile.getName(), total: profile.getTotalWeight(), functions };
});
fs.writeSync(1, JSON.stringify({ name: group.name, active: group.indexToView, profiles }));
process.exit(0);
