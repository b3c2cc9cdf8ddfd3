// The theme, and the colours of the style sheet for drawings on a canvas.
//
// The style sheet says each colour once, as light-dark(…); a hidden element tells what it is now.

import { effect, signal } from '@preact/signals';

export type Theme = 'system' | 'light' | 'dark';
const THEMES: Theme[] = ['system', 'light', 'dark'];
const KEY = 'memtape-theme';

export const theme = signal<Theme>(chosen());

/** Grows by one with each change of the colours, so that canvases are drawn again. */
export const scheme = signal(0);

function chosen(): Theme {
  try {
    return THEMES.find(name => name === localStorage.getItem(KEY)) ?? 'system';
  } catch {
    return 'system';
  }
}

export function turnTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // A private window keeps nothing.
  }
}

const colours = new Map<string, string>();

function forgetColours() {
  colours.clear();
  scheme.value += 1;
}

effect(() => {
  const name = theme.value;
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  queueMicrotask(forgetColours);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', forgetColours);
matchMedia('print').addEventListener('change', forgetColours);

let probe: HTMLElement | null = null;

/** The colour of a variable of the style sheet, such as `--link`, as the theme has it now. */
export function colour(name: string): string {
  const found = colours.get(name);
  if (found) return found;
  if (!probe) {
    probe = document.createElement('span');
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  const made = getComputedStyle(probe).color;
  colours.set(name, made);
  return made;
}

/** Red, green and blue of a colour of the style sheet. */
export const rgb = (name: string): number[] =>
  (colour(name).match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
