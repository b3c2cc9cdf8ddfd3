// The page as tests get it: bundled by esbuild with the options of `coordinator/build.rs`, and the
// modules without a document as one module for Node. Nothing is written into the source tree.

import { build } from 'esbuild';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const WEB = fileURLToPath(new URL('..', import.meta.url));
const SRC = join(WEB, 'src');
const OPTIONS = {
  bundle: true,
  write: false,
  target: 'es2022',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  logLevel: 'error',
};

/** Content of a file of `coordinator/web`. */
export const fileOf = name => readFile(join(WEB, name), 'utf8');

let made = null;

/** The files of the page by their names, made once. */
export const page = () => (made ??= files());

async function files() {
  const { outputFiles } = await build({
    ...OPTIONS,
    entryPoints: [join(SRC, 'main.tsx')],
    minify: true,
    legalComments: 'eof',
    outfile: join(WEB, 'app.js'),
  });
  const textOf = end => outputFiles.find(file => file.path.endsWith(end)).text;
  return {
    'index.html': await fileOf('index.html'),
    'favicon.svg': await fileOf('favicon.svg'),
    'app.js': textOf('app.js'),
    'app.css': textOf('app.css'),
  };
}

/** Modules of `src` by their names. `hash` is the address that they find. */
export async function modules(names, hash = '') {
  // What the modules ask of a browser when they are loaded.
  globalThis.window = new EventTarget();
  globalThis.location = { hash, origin: 'http://coordinator:7770' };
  globalThis.document = { getElementById: () => null };
  const contents = names
    .map((name, i) => `import * as m${i} from './${name}'; export { m${i} as '${name}' };`)
    .join('\n');
  const { outputFiles } = await build({
    ...OPTIONS,
    stdin: { contents, resolveDir: SRC, loader: 'ts' },
    format: 'esm',
    platform: 'neutral',
    mainFields: ['module', 'main'],
  });
  const folder = await mkdtemp(join(tmpdir(), 'memtape-page-'));
  const file = join(folder, 'modules.mjs');
  await writeFile(file, outputFiles[0].text);
  const found = await import(pathToFileURL(file));
  await rm(folder, { recursive: true });
  return found;
}
