from part import Part
PART = Part("marble","marble",1.0,1.0,{},lambda b: None)
