// The colours of the style sheet in both themes: contrasts, and what must be told apart.

import assert from 'node:assert/strict';
import test from 'node:test';

import { fileOf } from './bundle.mjs';

/** The colours of the style sheet, by theme. */
async function palette() {
  const sheet = await fileOf('src/style.css');
  const themes = { light: {}, dark: {} };
  for (const [, name, light, dark] of sheet.matchAll(/--([a-z0-9-]+): light-dark\((#\w{6}), (#\w{6})\);/g)) {
    themes.light[name] = light;
    themes.dark[name] = dark;
  }
  return themes;
}

/** Red, green and blue in linear light. */
const channels = colour =>
  [1, 3, 5]
    .map(at => parseInt(colour.slice(at, at + 2), 16) / 255)
    .map(value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));

function contrast(one, other) {
  const luminance = colour => channels(colour).reduce((total, value, i) => total + value * [0.2126, 0.7152, 0.0722][i], 0);
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

/** Distance of two colours as the eye has it (CIE 1976); about 2 is just visible. */
function distance(one, other) {
  const lab = colour => {
    const [r, g, b] = channels(colour);
    const white = [0.95047, 1, 1.08883];
    const xyz = [0.4124 * r + 0.3576 * g + 0.1805 * b, 0.2126 * r + 0.7152 * g + 0.0722 * b, 0.0193 * r + 0.1192 * g + 0.9505 * b];
    const [x, y, z] = xyz.map((value, i) => Math.cbrt(value / white[i]));
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
  };
  const [a, b] = [lab(one), lab(other)];
  return Math.hypot(...a.map((value, i) => value - b[i]));
}

const TEXTS = ['text', 'soft', 'link', 'bad', 'warn', 'good', 'onset', 'mark'];
const ON_STATES = ['bad bad-back', 'warn warn-back', 'good good-back', 'text bad-back', 'text warn-back', 'link bad-back', 'link warn-back'];
const TONES = [0, 1, 2, 3, 4, 5].map(tone => `tone-${tone}`);

test('text and lines have contrast in both themes', async () => {
  const pairs = [
    ...TEXTS.flatMap(name => [[name, 'back', 4.5], [name, 'panel', 4.5]]),
    ...ON_STATES.map(pair => [...pair.split(' '), 4.5]),
    ...TONES.map(tone => ['text', tone, 4.5]),
    ...['step-min', 'peak', 'reserved', 'peer'].map(name => [name, 'back', 3]),
    // The casing of a frame on the cells of the heat map.
    ...['heat-more', 'heat-less'].map(name => ['back', name, 3]),
    // The median of the peers is not taken for a line of the grid.
    ['peer', 'line', 2.5],
  ];
  for (const [theme, colours] of Object.entries(await palette())) {
    for (const [name, ground, least] of pairs) {
      const seen = contrast(colours[name], colours[ground]);
      assert.ok(seen >= least, `${theme}: ${name} on ${ground} is ${seen.toFixed(2)}`);
    }
    // A healthy row is calm: nearer to the page than to the colour of growth.
    assert.ok(contrast(colours['heat-calm'], colours.back) < 1.3, theme);
    assert.ok(contrast(colours['heat-more'], colours['heat-calm']) > 3, theme);
  }
});

test('parts of budgets have colours that are told apart in both themes', async () => {
  const sheet = await fileOf('src/style.css');
  const fills = [...sheet.matchAll(/^\.((?:layer|host)-\w+) \{ fill: light-dark\((#\w{6}), (#\w{6})\)/gm)];
  assert.equal(fills.length, 15);
  for (const [theme, colours] of Object.entries(await palette())) {
    const all = [['free', colours.free], ...fills.map(([, name, ...of]) => [name, of[theme === 'light' ? 0 : 1]])];
    all.forEach(([name, one], i) => {
      for (const [other, two] of all.slice(i + 1)) {
        assert.ok(distance(one, two) > 16, `${theme}: ${name} and ${other} are ${distance(one, two).toFixed(1)} apart`);
      }
    });
  }
});

test('names have contrast on the flames that differ most from the peers', async () => {
  const source = await fileOf('src/charts/flame_graph.tsx');
  const share = Number(/DIFFERENCE_MAX = ([\d.]+)/.exec(source)[1]);
  const mixed = (from, to) =>
    [1, 3, 5]
      .map(at => [parseInt(from.slice(at, at + 2), 16), parseInt(to.slice(at, at + 2), 16)])
      .map(([low, high]) => Math.round(low + (high - low) * share).toString(16).padStart(2, '0'))
      .reduce((text, part) => text + part, '#');
  for (const [theme, colours] of Object.entries(await palette())) {
    for (const end of ['heat-more', 'heat-less']) {
      const seen = contrast(colours.text, mixed(colours['heat-calm'], colours[end]));
      assert.ok(seen >= 4.5, `${theme}, ${end}: ${seen.toFixed(2)}`);
    }
  }
});
