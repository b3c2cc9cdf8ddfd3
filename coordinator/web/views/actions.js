// The decisions about restarts, of all jobs.

import { get } from '../api.js';
import { make } from '../elements.js';
import { actionTable } from './parts.js';

export const load = () => get('actions');

export const draw = ({ actions }) => [
  make('h1', {}, 'Restarts'),
  make('p', { class: 'soft' }, 'What was decided for each incident, and what came of it.'),
  actionTable(actions),
];
