// Measures the page of a large job: time to the first picture and to a zoom, bytes of the answers,
// memory of the tab, and what many viewers cost the coordinator. Prints one JSON object.
//
//     memtape-store-bench history FOLDER 16384 4096
//     memtape coordinator --data-dir FOLDER --listen 127.0.0.1:7771
//     node tests/scale.mjs http://127.0.0.1:7771 PID
//
// PID is that of the coordinator. It is no test: machines differ.

import { readFileSync } from 'node:fs';

import { launch } from './browser.mjs';

const VIEWERS = 50;
const WATCHED_MS = 20_000;
const JOB = '#/job/history@0';

const [address, pid] = process.argv.slice(2);
const pause = ms => new Promise(done => setTimeout(done, ms));

/** Seconds of CPU that a process has used. */
function cpu() {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** Does something in the page, and waits until the map of a new answer is drawn; in ms. */
async function timed(page, act) {
  const begun = performance.now();
  const [answer] = await Promise.all([page.waitForResponse(found => /\/area\?/.test(found.url()) && found.ok(), { timeout: 300_000 }), act()]);
  const bytes = (await answer.body()).length;
  await page.locator('canvas.heat').waitFor();
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  return { ms: Math.round(performance.now() - begun), bytes };
}

async function ofPage(browser) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const before = cpu();
  const first = await timed(page, () => page.goto(`${address}/${JOB}`));
  const cpu_s = cpu() - before;
  const zoom = await timed(page, () => page.goto(`${address}/${JOB}?shown_ranks=4096-4607&shown_steps=2000-2400`));
  const session = await page.context().newCDPSession(page);
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  await page.close();
  return { first, first_cpu_s: cpu_s, zoom, tab_heap_bytes: usedSize };
}

/** What a viewer asks for once it has the page: a stream, and all that has changed. The job has
 * ended, so this is the cost of pages that are open. */
async function ofViewers() {
  const paths = ['jobs', 'incidents', 'captures', 'jobs/history@0/ranks?most=256'];
  const ends = [];
  for (let viewer = 0; viewer < VIEWERS; viewer += 1) {
    const end = new AbortController();
    ends.push(end);
    await Promise.all(paths.map(path => fetch(`${address}/api/v1/${path}`).then(found => found.arrayBuffer())));
    fetch(`${address}/api/v1/changes`, { signal: end.signal })
      .then(async found => {
        for await (const _ of found.body);
      })
      .catch(() => {});
  }
  await pause(2000);
  const before = cpu();
  await pause(WATCHED_MS);
  const streams = (cpu() - before) / (WATCHED_MS / 1000);
  const polled = cpu();
  const begun = performance.now();
  // As without a stream: each viewer asks for all of it every two seconds.
  for (let turn = 0; turn < 5; turn += 1) {
    const asked = Array.from({ length: VIEWERS }, () =>
      Promise.all(paths.map(path => fetch(`${address}/api/v1/${path}`).then(found => found.arrayBuffer()))),
    );
    await Promise.all([pause(2000), ...asked]);
  }
  const polling = (cpu() - polled) / ((performance.now() - begun) / 1000);
  for (const end of ends) end.abort();
  return { viewers: VIEWERS, cores_with_streams: streams, cores_with_polling: polling };
}

const browser = await launch();
const figures = { page: await ofPage(browser), ...(await ofViewers()) };
await browser.close();
console.log(JSON.stringify(figures, null, 2));
