// A coordinator on the recorded store of a real job: four ranks on an H200, of which rank 2 leaks
// (tests/gpu/store.py made h200.backup).
//
// MEMTAPE names the program; without it the tests of this store are skipped.

import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { noBrowser } from './browser.mjs';

const { MEMTAPE } = process.env;
const STORE = fileURLToPath(new URL('h200.backup', import.meta.url));

export const noStore =
  noBrowser || (MEMTAPE ? false : 'MEMTAPE names no built memtape: the page is not tried on a real store');
export const JOB = '#/job/h200@0';

export class Recorded {
  async start() {
    this.folder ??= await mkdtemp(join(tmpdir(), 'memtape-recorded-'));
    const data = join(this.folder, 'data');
    if (!this.isRestored) await promisify(execFile)(MEMTAPE, ['store', 'restore', STORE, data]);
    this.isRestored = true;
    const words = ['coordinator', '--data-dir', data, '--listen', this.listen ?? '127.0.0.1:0'];
    this.child = spawn(MEMTAPE, words, { stdio: ['ignore', 'pipe', 'pipe'] });
    this.child.stderr.resume();
    const lines = createInterface({ input: this.child.stdout });
    this.address = await new Promise((resolve, reject) => {
      lines.on('line', line => /http:\S+/.test(line) && resolve(/http:\/\/[\w.:]+/.exec(line)[0]));
      this.child.once('exit', () => reject(new Error('the coordinator did not start')));
    });
    this.listen = new URL(this.address).host;
  }

  get = async path => (await fetch(`${this.address}/api/v1/${path}`)).json();

  async stop() {
    const ended = once(this.child, 'exit');
    this.child.kill('SIGTERM');
    await ended;
  }

  async end() {
    await this.stop();
    await rm(this.folder, { recursive: true });
  }

  /** The addresses of all views, of the incident of the leak and its capture. */
  async views() {
    const { incidents } = await this.get('incidents');
    const leak = incidents.find(of => of.class === 'leak');
    return {
      home: '#/',
      job: JOB,
      incident: `#/incident/${leak.id}`,
      capture: `#/capture/${leak.capture_id}`,
      actions: '#/actions',
      nodes: '#/nodes',
    };
  }
}
