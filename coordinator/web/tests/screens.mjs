// Pictures of views, made small and compared with stored ones.
//
// A view is taken block by block: a heading, a table, a chart. Each cell of some pixels becomes one
// pixel with their mean, so that text becomes grey; and a line that wraps elsewhere changes its own
// block only. The blocks stand one below the other on a sheet, which is what is stored.

import { PNG } from 'pngjs';

/** Sides of a cell in CSS pixels, in windows below a width. */
const CELLS = [[1000, 6], [2000, 10], [Infinity, 16]];
/** What stands between two blocks of a sheet, and beside one that is not as wide as the page. */
const [BETWEEN, BESIDE] = [[255, 0, 255], [0, 255, 0]];
/** Cells are unlike from this difference of a colour on. */
const UNLIKE = 32;
/** Few shades make small files. */
const SHADE = 17;

/** The blocks that the page shows, with their places, and its width. */
const blocksOf = page =>
  page.evaluate(() => {
    const isGroup = node =>
      node.matches('main, section, figure, main div:not(.alert, .card, .scroll, .chart, .command)');
    const leaves = node => (isGroup(node) ? [...node.children].flatMap(leaves) : [node]);
    const parts = [...document.querySelectorAll('#page > :is(header, main, footer)')];
    const blocks = parts.flatMap(leaves).map(node => {
      const { x, y, width, height } = node.getBoundingClientRect();
      const name = [node.localName, ...node.classList].join('.');
      return {
        name: `${name} ${node.innerText?.replace(/\s+/g, ' ').slice(0, 40) ?? ''}`,
        isDrawn: node.matches('.chart, canvas, svg'),
        // What is wider than its block is scrolled or cut.
        ...{ x: x + scrollX, y: y + scrollY, width: Math.max(width, node.scrollWidth), height },
      };
    });
    const shown = blocks.filter(of => of.width >= 1 && of.height >= 1);
    return { width: document.documentElement.scrollWidth, blocks: shown };
  });

/** Makes the sheet of the page as it is shown: a picture, and the blocks on it. */
export async function sheetOf(page) {
  const { width, blocks } = await blocksOf(page);
  const whole = PNG.sync.read(await page.screenshot({ fullPage: true, animations: 'disabled' }));
  const cell = CELLS.find(([most]) => width < most)[1];
  const heights = blocks.map(of => Math.max(1, Math.round(of.height / cell)));
  const height = heights.reduce((sum, of) => sum + of + 1, 0);
  const sheet = new PNG({ width: Math.ceil(width / cell), height });
  let top = 0;
  blocks.forEach((block, i) => {
    const [left, right] = [block.x, block.x + block.width].map(of => Math.round(of / cell));
    for (let y = 0; y < heights[i]; y += 1) {
      const line = Math.round(block.y) + y * cell;
      for (let x = 0; x < sheet.width; x += 1) {
        const isBeside = x < left || x >= right;
        put(sheet, x, top + y, isBeside ? BESIDE : mean(whole, x * cell, line, cell));
      }
    }
    top += heights[i];
    for (let x = 0; x < sheet.width; x += 1) put(sheet, x, top, BETWEEN);
    top += 1;
  });
  return { sheet, blocks };
}

function put({ data, width }, x, y, colour) {
  data.set([...colour, 255], (y * width + x) * 4);
}

/** The mean colour of a cell, as far as it is on the picture. */
function mean({ data, width, height }, left, top, cell) {
  const sum = [0, 0, 0];
  let count = 0;
  for (let y = top; y < Math.min(top + cell, height); y += 1) {
    for (let x = left; x < Math.min(left + cell, width); x += 1) {
      count += 1;
      for (let i = 0; i < 3; i += 1) sum[i] += data[(y * width + x) * 4 + i];
    }
  }
  return sum.map(of => Math.round(of / Math.max(1, count) / SHADE) * SHADE);
}

/** The blocks of a sheet with the share of their cells that are unlike those of a stored sheet. */
export function differences({ sheet, blocks }, stored) {
  const [then, now] = [bandsOf(stored), bandsOf(sheet)];
  if (stored.width !== sheet.width) {
    return [{ name: `the page is ${sheet.width} cells wide, not ${stored.width}`, share: 1 }];
  }
  if (then.length !== now.length) {
    return [{ name: `the page has ${now.length} blocks, not ${then.length}`, share: 1 }];
  }
  return blocks.map(({ name, isDrawn }, i) => {
    const [a, b] = [{ of: sheet, ...now[i] }, { of: stored, ...then[i] }];
    // Both what was there and is not, and what is there and was not.
    return { name, isDrawn, share: Math.max(unlike(a, b), unlike(b, a)) };
  });
}

/** Where the blocks of a sheet are. */
function bandsOf({ data, width, height }) {
  const bands = [];
  let from = 0;
  for (let y = 0; y < height; y += 1) {
    if (!BETWEEN.every((value, i) => data[y * width * 4 + i] === value)) continue;
    bands.push({ from, high: y - from });
    from = y + 1;
  }
  return bands;
}

/** The share of cells of a block that are like none around the same cell of the other one. */
function unlike(a, b) {
  let count = 0;
  for (let y = 0; y < a.high; y += 1) {
    const other = Math.min(b.high - 1, Math.floor((y * b.high) / a.high));
    for (let x = 0; x < a.of.width; x += 1) {
      count += isLikeOneAround(a, x, y, b, other) ? 0 : 1;
    }
  }
  return count / (a.of.width * a.high);
}

function isLikeOneAround(a, x, y, b, other) {
  for (const v of [other, other - 1, other + 1]) {
    for (const u of [x, x - 1, x + 1]) {
      if (u >= 0 && v >= 0 && u < b.of.width && v < b.high && isLike(a, x, y, b, u, v)) return true;
    }
  }
  return false;
}

function isLike(a, x, y, b, u, v) {
  const [here, there] = [((a.from + y) * a.of.width + x) * 4, ((b.from + v) * b.of.width + u) * 4];
  return [0, 1, 2].every(i => Math.abs(a.of.data[here + i] - b.of.data[there + i]) < UNLIKE);
}
