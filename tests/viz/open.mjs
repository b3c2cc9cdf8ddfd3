// Opens a pickle in PyTorch's own viewer, without a browser, and prints what the viewer made of it.
//
//     node tests/viz/open.mjs FOLDER PICKLE
//
// FOLDER holds MemoryViz.js and, from torch 2.12 on, process_alloc_data.js: PyTorch's files, which
// tests/viz/fetch.py gets. They run as they are. Only what they import for drawing is replaced, by one
// object that answers every call with itself, so their reading, matching and replaying of the memory is
// real and the drawing goes nowhere.
//
// Printed for the first device with a trace, as one JSON object:
//     segments, blocks, active_blocks   of the snapshot, after the viewer's own reading
//     allocs                            events of that kind
//     elements, max_size, max_at_time   of "Active Memory Timeline"; the last is the highest point
//     segment_max_size                  of "Active Cached Segment Timeline"
//     states                            of "Allocator State History": [event, reserved, allocated] as
//                                       replayed back to that event, for 64 of them and both ends
//     frames                            frames of the live blocks that the viewer would show

import {readFileSync, existsSync} from 'node:fs';
import {join} from 'node:path';

const STATES = 64;

// Stands for d3, for the page and for every part of them. As a number it is 0.
const nothing = new Proxy(function () {}, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => 0 : name === Symbol.iterator ? undefined : nothing),
  apply: () => nothing,
  construct: () => nothing,
  set: () => true,
});

// The file without its imports and exports: functions of one scope.
function source(path) {
  return readFileSync(path, 'utf8')
    .replace(/^import\s[\s\S]*?from\s*["'][^"']*["'];$/gm, '')
    .replace(/^export\s*\{[\s\S]*?\};?$/gm, '')
    .replace(/^export\s+/gm, '');
}

function viewer(folder) {
  const data = join(folder, 'process_alloc_data.js');
  const parts = [existsSync(data) ? source(data) : '', source(join(folder, 'MemoryViz.js'))];
  const drawing = ['d3', 'axisLeft', 'scaleLinear', 'zoom', 'zoomIdentity', 'brushX', 'document', 'window'];
  const wanted = ['unpickle_and_annotate', 'process_alloc_data', 'MemoryView', 'format_frames'];
  const body = `${parts.join('\n')}\nreturn {${wanted.join(', ')}};`;
  const quiet = {log() {}, warn() {}, error() {}, time() {}, timeEnd() {}};
  return new Function(...drawing, 'console', body)(...drawing.map(() => nothing), quiet);
}

function highest(numbers) {
  return numbers.reduce((most, number) => Math.max(most, number), 0);
}

// What "Allocator State History" shows when an event is clicked.
function states(viz, snapshot, device) {
  const view = viz.MemoryView(nothing, nothing, snapshot, device);
  // Taking a snapshot is an event too, and only one of two pickles of a moment may have it.
  const last = snapshot.device_traces[device].findLastIndex(event => event.action !== 'snapshot');
  const at = new Set(Array.from({length: STATES + 1}, (_, step) => Math.floor((last * step) / STATES)));
  return [...at].map(event => [event, ...view.draw(event)]);
}

const [folder, pickle] = process.argv.slice(2);
const viz = viewer(folder);
const bytes = readFileSync(pickle);
const snapshot = viz.unpickle_and_annotate(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const device = snapshot.device_traces.findIndex(trace => trace.length > 0);
const trace = snapshot.device_traces[device];
const segments = snapshot.segments.filter(segment => segment.device === device);
const blocks = segments.flatMap(segment => segment.blocks);
const active = blocks.filter(block => block.state !== 'inactive');
const timeline = viz.process_alloc_data(snapshot, device, false, 15000);
const cached = viz.process_alloc_data(snapshot, device, true, 15000);
console.log(
  JSON.stringify({
    segments: segments.length,
    blocks: blocks.length,
    active_blocks: active.length,
    allocs: trace.filter(event => event.action === 'alloc').length,
    elements: timeline.elements_length,
    max_size: timeline.max_size,
    max_at_time: highest(timeline.max_at_time),
    segment_max_size: cached.max_size,
    states: states(viz, snapshot, device),
    frames: active.map(block => viz.format_frames(block.frames)),
  }),
);
