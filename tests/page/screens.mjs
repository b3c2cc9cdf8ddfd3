// Opens every view of the page in Chromium, wide and narrow, light and dark, and takes a screenshot
// of each.
//
//     node tests/page/screens.mjs ADDRESS FOLDER
//
// Fails on an error in the console, a request to another host, a page wider than its screen, and a
// control without a name. CHROMIUM names the browser. It talks to the browser over a pipe, so
// nothing needs to be installed.

import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [address, folder] = process.argv.slice(2);
const WIDTHS = [1280, 400];
const THEMES = ['light', 'dark'];
const LOAD_MS = 20_000;

class Browser {
  constructor() {
    this.profile = mkdtempSync(join(tmpdir(), 'screens-'));
    this.process = spawn(
      process.env.CHROMIUM ?? 'chromium',
      [
        '--headless',
        '--no-sandbox',
        '--disable-gpu',
        '--disable-quic',
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
        '--remote-debugging-pipe',
        `--user-data-dir=${this.profile}`,
        'about:blank',
      ],
      { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] },
    );
    this.waiting = new Map();
    this.listeners = [];
    this.number = 0;
    let text = '';
    this.process.stdio[4].on('data', data => {
      text += data;
      const messages = text.split('\0');
      text = messages.pop();
      messages.forEach(message => this.receive(JSON.parse(message)));
    });
  }

  receive({ id, result, error, method, params }) {
    if (id === undefined) {
      this.listeners.forEach(listener => listener(method, params));
      return;
    }
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (error) reject(new Error(error.message));
    else resolve(result);
  }

  send(method, params = {}, sessionId = this.session) {
    const id = ++this.number;
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  async open() {
    const { targetInfos } = await this.send('Target.getTargets');
    const { targetId } = targetInfos.find(of => of.type === 'page');
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true });
    this.session = sessionId;
    for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await this.send(`${domain}.enable`);
  }

  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', {
      expression,
      returnByValue: true,
      awaitPromise: true,
    });
    if (exceptionDetails) throw new Error(exceptionDetails.text);
    return result.value;
  }

  async close() {
    this.process.kill();
    await new Promise(resolve => this.process.on('exit', resolve));
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** The views that there are, each with its path behind #. */
async function views() {
  const get = async path => (await fetch(`${address}/api/v1/${path}`)).json();
  const found = {
    home: '/',
    actions: '/actions',
    nodes: '/nodes',
    unknown: '/incident/inc-nosuch',
  };
  (await get('jobs')).jobs.forEach((of, i) => {
    found[`job-${i}`] = `/job/${encodeURIComponent(of.job)}`;
  });
  (await get('incidents')).incidents.forEach((of, i) => {
    found[`incident-${i}`] = `/incident/${of.id}`;
  });
  (await get('captures')).captures.slice(0, 1).forEach(of => {
    found.capture = `/capture/${of.id}`;
  });
  return found;
}

const LOADED =
  "document.querySelector('#content > :not(noscript)') !== null && /as of|^$|✕|held/.test(document.getElementById('as-of').textContent)";
const MISTAKES = `(() => {
  const found = [];
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) found.push('wider than the screen: ' + width);
  for (const of of document.querySelectorAll('a, button, select, summary, [role=slider], [role=img], meter')) {
    const name = of.textContent.trim() || of.getAttribute('aria-label') || of.labels?.length;
    if (!name) found.push('without a name: ' + of.outerHTML.slice(0, 80));
  }
  return found;
})()`;

const browser = new Browser();
const mistakes = [];
let at = '';
browser.listeners.push((method, params) => {
  if (method === 'Runtime.exceptionThrown')
    mistakes.push(`${at}: ${params.exceptionDetails.exception?.description}`);
  const isError = method === 'Log.entryAdded' && params.entry.level === 'error';
  // The answer to an unknown id is an error, and meant.
  if (isError && !/404/.test(params.entry.text)) mistakes.push(`${at}: ${params.entry.text}`);
  if (method === 'Network.requestWillBeSent' && !params.request.url.startsWith(address)) {
    mistakes.push(`${at}: a request to ${params.request.url}`);
  }
});
mkdirSync(folder, { recursive: true });
await browser.open();
for (const width of WIDTHS) {
  await browser.send('Emulation.setDeviceMetricsOverride', {
    width,
    height: 900,
    deviceScaleFactor: 1,
    mobile: width < 600,
  });
  for (const theme of THEMES) {
    await browser.send('Emulation.setEmulatedMedia', {
      features: [{ name: 'prefers-color-scheme', value: theme }],
    });
    for (const [name, path] of Object.entries(await views())) {
      at = `${name}-${width}-${theme}`;
      await browser.send('Page.navigate', { url: 'about:blank' });
      at = `${name}-${width}-${theme}`;
      await browser.send('Page.navigate', { url: `${address}/#${path}` });
      for (const end = Date.now() + LOAD_MS; !(await browser.evaluate(LOADED));) {
        if (Date.now() > end) {
          mistakes.push(`${at}: not loaded`);
          break;
        }
        await new Promise(resolve => setTimeout(resolve, 50));
      }
      await browser.evaluate(
        'new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))',
      );
      (await browser.evaluate(MISTAKES)).forEach(mistake => mistakes.push(`${at}: ${mistake}`));
      const { cssContentSize: size } = await browser.send('Page.getLayoutMetrics');
      const { data } = await browser.send('Page.captureScreenshot', {
        captureBeyondViewport: true,
        clip: { x: 0, y: 0, width, height: Math.max(900, Math.ceil(size.height)), scale: 1 },
      });
      writeFileSync(join(folder, `${at}.png`), Buffer.from(data, 'base64'));
    }
  }
}
at = 'without JavaScript';
await browser.send('Emulation.setScriptExecutionDisabled', { value: true });
await browser.send('Page.navigate', { url: 'about:blank' });
await browser.send('Page.navigate', { url: `${address}/` });
await new Promise(resolve => setTimeout(resolve, 1000));
const { data } = await browser.send('Page.captureScreenshot', {});
writeFileSync(join(folder, 'without-javascript.png'), Buffer.from(data, 'base64'));
await browser.close();
mistakes.forEach(mistake => console.error(mistake));
console.log(`${mistakes.length} mistakes; screenshots in ${folder}`);
process.exitCode = mistakes.length ? 1 : 0;
