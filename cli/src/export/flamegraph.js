// Zoom, search and details of a flame graph. Without it all figures are in the tooltips.
'use strict';
(function () {
  var NAMESPACE = 'http://www.w3.org/2000/svg';
  var TEXT_PERCENT_MIN = 0.8;
  var boxes = Array.from(document.querySelectorAll('.flame-box'));
  var info = document.querySelector('.flame-info');
  boxes.forEach(function (box) {
    box.at = {
      x: parseFloat(box.getAttribute('x')),
      width: parseFloat(box.getAttribute('width')),
      y: Number(box.getAttribute('y')),
    };
    box.details = box.querySelector('title').textContent;
    box.addEventListener('click', function () { zoom(box); });
    box.addEventListener('mouseenter', function () { say(box.details); });
    box.addEventListener('mouseleave', function () { say(''); });
  });

  function say(text) {
    if (info) info.textContent = text || info.getAttribute('data-rest');
  }

  function draw(box, x, width) {
    box.setAttribute('x', x + '%');
    box.setAttribute('width', width + '%');
    if (width > TEXT_PERCENT_MIN) {
      if (box.querySelector('text')) return;
      var text = document.createElementNS(NAMESPACE, 'text');
      text.setAttribute('x', '3');
      text.setAttribute('y', '12.5');
      text.textContent = box.getAttribute('data-name');
      box.appendChild(text);
    }
  }

  function zoom(to) {
    boxes.forEach(function (box) {
      var above = to.at.y > box.at.y;
      var start = box.at.x - to.at.x;
      var end = start + box.at.width - to.at.width;
      var holds = above ? 0.002 > start : start > -0.002;
      var fits = above ? end > -0.002 : 0.002 > end;
      box.style.display = holds ? (fits ? '' : 'none') : 'none';
      box.classList.toggle('flame-faded', above);
      if (above) draw(box, 0, 100);
      else draw(box, start / to.at.width * 100, box.at.width / to.at.width * 100);
    });
  }

  function search(word) {
    var found = 0;
    boxes.forEach(function (box) {
      var has = word ? box.details.toLowerCase().includes(word.toLowerCase()) : false;
      box.classList.toggle('flame-found', has);
      if (has) found += 1;
    });
    say(word ? found + ' boxes have ' + word : '');
  }

  document.querySelectorAll('.flame-button').forEach(function (button) {
    button.addEventListener('click', function () {
      if (button.getAttribute('data-does') === 'reset') {
        zoom(boxes[0]);
        search('');
      } else {
        search(window.prompt('Text of a function, a file or a path', '') || '');
      }
    });
  });
}());
