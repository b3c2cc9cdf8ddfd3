// The report: the views of the coordinator's page, drawn from the answers in this file.
//
// The address bar says which view is shown; at first it is that of the report's subject.

import { report } from './api.js';
import { link, make, section } from './elements.js';
import { route } from './route.js';
import * as files from './files.js';
import * as capture from './views/capture.js';
import * as incident from './views/incident.js';
import * as job from './views/job.js';

const VIEWS = { job, incident, capture, files };
const content = document.getElementById('content');
const start = link(...report.start);

async function show() {
  const { view, id } = route();
  let parts;
  try {
    parts = [VIEWS[view].draw(await VIEWS[view].load(id)), view === 'job' ? null : source()];
  } catch {
    parts = [make('h1', {}, `This report does not hold ${view} ${id}`)];
  }
  const back = location.hash === start ? null : make('a', { href: start }, 'Back to the start');
  const made = make('p', { class: 'soft' }, `Memtape report, made by ${report.made}. `, back);
  content.replaceChildren(...[made, parts].flat(4).filter(Boolean));
}

/** The line of code with its neighbours, where this machine had the file. */
function source() {
  const { source: of } = report;
  if (!of) return null;
  const line = (text, index) => {
    const number = of.first_line + index;
    const isIt = number === of.line;
    const words = `${isIt ? '▶' : ' '} ${number}  ${text}\n`;
    return make('span', { class: isIt ? 'culprit' : '' }, words);
  };
  return section(
    `The line, in ${of.file}`,
    of.is_newer
      ? make(
          'p',
          { class: 'error' },
          'This file was changed after the incident: the line may be another.',
        )
      : null,
    make('pre', {}, of.lines.map(line)),
  );
}

window.addEventListener('hashchange', show);
if (route().id || location.hash === start) show();
else location.replace(start);
