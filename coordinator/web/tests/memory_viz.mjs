// Measures PyTorch's memory_viz beside the page: time to the first picture of one rank's snapshot,
// its bytes, and the memory of the tab. Prints a JSON object for each snapshot.
//
//     npm install --prefix FOLDER d3@5 d3-axis@1 d3-scale@1 d3-zoom@1 d3-brush@1
//     node tests/memory_viz.mjs MemoryViz.js FOLDER rank0.pickle…
//
// MemoryViz.js is torch/utils/viz/MemoryViz.js of PyTorch's repository; FOLDER has what it loads from
// another host. The snapshots are what torch.cuda.memory._dump_snapshot writes, or `memtape export`.
// It is no test: machines differ.

import { statSync } from 'node:fs';
import { resolve } from 'node:path';

import { build } from 'esbuild';

import { launch } from './browser.mjs';

const ADDRESS = 'http://memory-viz';
const LIMIT_MS = 300_000;
const PAGE = `<!doctype html><html><head></head><body><script type="module">
  import { add_remote_files } from './viz.js';
  add_remote_files([{ name: 'rank', url: 'snapshot.pickle' }]);
</script></body></html>`;

const [script, folder, ...snapshots] = process.argv.slice(2);

/** The script with its libraries, which it imports by addresses such as …/d3-axis@1. */
async function bundled() {
  const libraries = {
    name: 'libraries',
    setup({ onResolve, resolve: found }) {
      const options = { resolveDir: resolve(folder), kind: 'import-statement' };
      onResolve({ filter: /^https:/ }, ({ path }) => found(/([^/]+)@[^/]*$/.exec(path)[1], options));
    },
  };
  const options = { entryPoints: [script], bundle: true, write: false, format: 'esm', plugins: [libraries] };
  return (await build(options)).outputFiles[0].text;
}

async function measured(browser, viz, snapshot) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  await page.route(`${ADDRESS}/**`, route => {
    const path = new URL(route.request().url()).pathname;
    if (path === '/viz.js') return route.fulfill({ body: viz, contentType: 'text/javascript' });
    if (path === '/snapshot.pickle') return route.fulfill({ path: snapshot });
    return route.fulfill({ body: PAGE, contentType: 'text/html' });
  });
  const begun = performance.now();
  await page.goto(ADDRESS);
  await page.locator('svg').locator('path, polygon, rect').first().waitFor({ state: 'attached', timeout: LIMIT_MS });
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  const first_ms = Math.round(performance.now() - begun);
  const session = await page.context().newCDPSession(page);
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  await page.close();
  return { snapshot, bytes: statSync(snapshot).size, first_ms, tab_heap_bytes: usedSize };
}

const viz = await bundled();
const browser = await launch();
for (const snapshot of snapshots) console.log(JSON.stringify(await measured(browser, viz, snapshot)));
await browser.close();
